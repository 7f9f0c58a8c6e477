//! Sends parameters to the ranks whose stages use them, and back. The others are unmaterialised.

use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::InitialValues;

use crate::error::PipelineError;
use crate::message::{decode, encode};

/// Tags of messages that send parameters from rank 0, and to rank 0.
const OUT: u64 = 1 << 61;
const BACK: u64 = 1 << 62;

/// An empty tensor without gradient, for a parameter that other ranks hold. A lazy parameter is not initialised.
fn unmaterialised<const D: usize>(param: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    let empty = Tensor::zeros([0; D], &param.lazy_device());
    Param::initialized(param.id, empty).set_require_grad(false)
}

/// Sends each rank the parameters that it holds, with rank 0's values; its other parameters become unmaterialised.
///
/// `holders` gives, for each parameter of the model in the order of its fields, the ranks of `group` that hold it.
/// Rank 0 sends one parameter after another, and no other rank ever has more than its own. Afterwards a parameter has
/// the same id on all ranks. All ranks call it, with the same model and holders.
///
/// # Errors
/// [`PipelineError`] if a collective fails, or the ranks' models differ.
pub fn distribute<M: Module>(
    model: M,
    group: &ProcessGroup,
    holders: &[(String, Vec<usize>)],
) -> Result<M, PipelineError> {
    transfer(model, group, holders, Direction::Out(None))
}

/// As [`distribute`], but each rank reads the parameters that `values` has, and that it holds, itself: in `model` they
/// are [`placeholders`](everburn_distributed::placeholders).
///
/// # Errors
/// As [`distribute`]; also if a value cannot be read.
pub fn distribute_initial_values<M: Module>(
    model: M,
    group: &ProcessGroup,
    holders: &[(String, Vec<usize>)],
    values: &dyn InitialValues,
) -> Result<M, PipelineError> {
    let paths = values.paths().into_iter().collect();
    transfer(model, group, holders, Direction::Out(Some((values, paths))))
}

fn transfer<M: Module>(
    model: M,
    group: &ProcessGroup,
    holders: &[(String, Vec<usize>)],
    direction: Direction<'_>,
) -> Result<M, PipelineError> {
    let mut mapper = Transfer {
        group,
        holders,
        position: 0,
        direction,
        result: Ok(()),
    };
    let model = model.map(&mut mapper);
    mapper.result.map(|()| model)
}

/// Joins the full model on rank 0, on `device`, from the first holder of each parameter. The other ranks get their own
/// part back.
///
/// See [`distribute`] for `holders`. All ranks call it.
///
/// # Errors
/// [`PipelineError`] if a collective fails, or a parameter cannot be read.
pub fn gather<M: Module>(
    model: M,
    group: &ProcessGroup,
    holders: &[(String, Vec<usize>)],
    device: &Device,
) -> Result<M, PipelineError> {
    transfer(model, group, holders, Direction::Back(device.clone()))
}

enum Direction<'a> {
    /// With the parameters that each rank reads itself, and their paths.
    Out(Option<(&'a dyn InitialValues, HashSet<String>)>),
    Back(Device),
}

struct Transfer<'a> {
    group: &'a ProcessGroup,
    holders: &'a [(String, Vec<usize>)],
    position: usize,
    direction: Direction<'a>,
    result: Result<(), PipelineError>,
}

impl Transfer<'_> {
    fn parameter(&self, position: usize, reason: impl Into<String>) -> PipelineError {
        let path = self.holders.get(position).map(|(path, _)| path.clone());
        PipelineError::Parameter {
            path: path.unwrap_or_else(|| format!("number {position}")),
            reason: reason.into(),
        }
    }

    fn float<const D: usize>(
        &self,
        position: usize,
        param: &Param<Tensor<D>>,
    ) -> Result<Param<Tensor<D>>, PipelineError> {
        let Some((path, holders)) = self.holders.get(position) else {
            return Err(self.parameter(position, "the model has more parameters than its blocks"));
        };
        let (rank, tag) = (self.group.rank(), position as u64);
        match &self.direction {
            Direction::Out(values) if rank == 0 => {
                let values = values.as_ref().filter(|(_, paths)| paths.contains(path));
                // Initialised in the order of the fields for all holders, as on one device.
                let message = self.message(position, param, values.is_none())?;
                for holder in holders.iter().filter(|holder| **holder != 0) {
                    let sent = self.group.send(message.clone(), *holder, OUT | tag);
                    sent.wait()?;
                }
                match (holders.contains(&0), values) {
                    (true, None) => Ok(param.clone()),
                    (true, Some((values, _))) => {
                        let data = self.initial_value(position, *values, path)?;
                        let (device, trains) =
                            (param.lazy_device(), param.base().is_require_grad());
                        let dtype = data.dtype();
                        let value = Tensor::<D>::from_data(data, (&device, dtype));
                        Ok(Param::initialized(param.id, value).set_require_grad(trains))
                    }
                    (false, _) => Ok(unmaterialised(param)),
                }
            }
            Direction::Out(values) if holders.contains(&rank) => {
                let message = self.group.recv::<u8>(0, OUT | tag).wait()?;
                let (id, trains, data) = self.read(position, message)?;
                let data = match (data, values) {
                    (Some(data), _) => data,
                    (None, Some((values, _))) => self.initial_value(position, *values, path)?,
                    (None, None) => {
                        let reason = "rank 0 reads first values, and this rank has none";
                        return Err(self.parameter(position, reason));
                    }
                };
                if data.shape() != &param.lazy_shape() {
                    let (theirs, ours) = (data.shape(), param.lazy_shape());
                    let reason = format!("it has the shape {theirs:?} on rank 0 and {ours:?} here");
                    return Err(self.parameter(position, reason));
                }
                let (device, dtype) = (param.lazy_device(), data.dtype());
                let value = Tensor::<D>::from_data(data, (&device, dtype));
                Ok(Param::initialized(id, value).set_require_grad(trains))
            }
            Direction::Out(_) => Ok(unmaterialised(param)),
            Direction::Back(device) => {
                let owner = holders.first().copied().unwrap_or(0);
                if rank == owner && owner != 0 {
                    let message = self.message(position, param, true)?;
                    self.group.send(message, 0, BACK | tag).wait()?;
                }
                if rank != 0 {
                    return Ok(param.clone());
                }
                if owner == 0 {
                    let value = param.val().without_autodiff().to_device(device);
                    return Ok(Param::initialized(param.id, value));
                }
                let message = self.group.recv::<u8>(owner, BACK | tag).wait()?;
                let (id, _, data) = self.read(position, message)?;
                let data = data.filter(|data| data.shape().num_dims() == D);
                let data =
                    data.ok_or_else(|| self.parameter(position, "it came with other dimensions"))?;
                let dtype = data.dtype();
                let value = Tensor::<D>::from_data(data, (device, dtype));
                Ok(Param::initialized(id, value))
            }
        }
    }

    fn initial_value(
        &self,
        position: usize,
        values: &dyn InitialValues,
        path: &str,
    ) -> Result<TensorData, PipelineError> {
        let value = values.value(path);
        value.map_err(|reason| self.parameter(position, reason))
    }

    /// A parameter, or what is to be known of it.
    fn message<const D: usize>(
        &self,
        position: usize,
        param: &Param<Tensor<D>>,
        with_values: bool,
    ) -> Result<Vec<u8>, PipelineError> {
        let value = param.val();
        let trains = i64::from(value.is_require_grad());
        let data = match with_values {
            false => None,
            true => {
                let data = value.without_autodiff().try_into_data();
                Some(data.map_err(|error| self.parameter(position, error.to_string()))?)
            }
        };
        let about = TensorData::from([param.id.val() as i64, trains]);
        encode(&[Some(about), data]).map_err(|reason| self.parameter(position, reason))
    }

    /// The id, whether the parameter is trained, and its values, if they came.
    fn read(
        &self,
        position: usize,
        message: Vec<u8>,
    ) -> Result<(ParamId, bool, Option<TensorData>), PipelineError> {
        let parts = decode(message).map_err(|reason| self.parameter(position, reason))?;
        if let Ok([Some(about), data]) = <[Option<TensorData>; 2]>::try_from(parts)
            && let Ok([id, trains]) = about.as_slice::<i64>()
        {
            return Ok((ParamId::from(*id as u64), *trains != 0, data));
        }
        Err(self.parameter(position, "another message came in its place"))
    }
}

impl ModuleMapper for Transfer<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let position = self.position;
        self.position += 1;
        if self.result.is_err() {
            return param;
        }
        match self.float(position, &param) {
            Ok(param) => param,
            Err(error) => {
                self.result = Err(error);
                param
            }
        }
    }

    everburn_nn::walking! { map others self, param => {
        self.position += 1;
        param
    } }
}
