//! Walks through a model whose parameters are cut.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParamMapper};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;

use super::cut::Cut;
use super::gather::read;
use super::parameters::Slices;
use super::whole::Whole;
use crate::error::DdpError;

/// The numbers of `cut` of a flat tensor, on its device, filled up with zeros.
fn slice_of<const D: usize>(whole: Tensor<D>, cut: Cut) -> Tensor<1> {
    let elements = whole.shape().num_elements();
    let (own, length) = (cut.own(elements), cut.length(elements));
    let options = (whole.device(), whole.dtype());
    let zeros = |length: usize| Tensor::<1>::zeros([length], (&options.0, options.1));
    if own.is_empty() {
        return zeros(length);
    }
    let slice = whole.reshape([elements]).narrow(0, own.start, own.len());
    match length - own.len() {
        0 => slice,
        missing => Tensor::cat(vec![slice, zeros(missing)], 0),
    }
}

/// The same numbers in memory of their own, on `device`.
fn moved(slice: Tensor<1>, device: &Device) -> Result<Tensor<1>, DdpError> {
    let data = read(slice)?;
    let (dtype, shape) = (data.dtype(), data.shape().clone());
    // A slice may be a view, which would keep the whole parameter.
    let data = TensorData::from_bytes_vec(data.as_bytes().to_vec(), shape, dtype);
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// This rank's slices of the parameters of `model`, in memory of their own on the device `kept`, if one is
/// given. Waits for parameters that are on their way.
pub(crate) fn slices_of<M: Module>(
    model: &M,
    numbers: &HashMap<ParamId, usize>,
    cut: Cut,
    kept: Option<&Device>,
) -> Result<Slices, DdpError> {
    struct Slice<'a> {
        numbers: &'a HashMap<ParamId, usize>,
        cut: Cut,
        kept: Option<&'a Device>,
        slices: Vec<Option<Param<Tensor<1>>>>,
        failed: Option<DdpError>,
    }
    impl ModuleVisitor for Slice<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let number = self.numbers.get(&param.id).copied();
            let Some(number) = number.filter(|number| self.slices[*number].is_none()) else {
                return;
            };
            let slice = slice_of(param.base().without_autodiff(), self.cut);
            let slice = match self.kept {
                Some(kept) => moved(slice, kept),
                None => Ok(Tensor::from_inner(slice)),
            };
            match slice {
                Ok(slice) => {
                    let slice = Param::initialized(param.id, slice.require_grad());
                    self.slices[number] = Some(slice);
                }
                Err(error) => {
                    self.failed.get_or_insert(error);
                }
            }
        }
    }
    let mut visitor = Slice {
        numbers,
        cut,
        kept,
        slices: vec![None; numbers.len()],
        failed: None,
    };
    model.visit(&mut visitor);
    if let Some(error) = visitor.failed {
        return Err(error);
    }
    let slices: Option<Slices> = visitor.slices.into_iter().collect();
    slices.ok_or_else(|| DdpError::OtherModel {
        difference: "it has lost a parameter".to_string(),
    })
}

/// This rank's slices of `gradients` of the parameters of `model`, on the device `home`, and how many bytes
/// the whole ones have.
pub(crate) fn cut_gradients<M: Module>(
    model: &M,
    gradients: GradientsParams,
    numbers: &HashMap<ParamId, usize>,
    cut: Cut,
    home: &Device,
) -> Result<(GradientsParams, u64), DdpError> {
    struct Slice<'a> {
        numbers: &'a HashMap<ParamId, usize>,
        cut: Cut,
        home: &'a Device,
        gradients: GradientsParams,
        slices: GradientsParams,
        bytes: u64,
        failed: Option<DdpError>,
    }
    impl ModuleVisitor for Slice<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.numbers.contains_key(&param.id) {
                return;
            }
            // Tied weights are visited twice and have one gradient.
            let Some(gradient) = self.gradients.remove::<D>(param.id) else {
                return;
            };
            self.bytes += bytes(&gradient);
            let elsewhere = gradient.device() != *self.home;
            let slice = slice_of(gradient, self.cut);
            let slice = match elsewhere {
                true => moved(slice, self.home),
                false => Ok(slice),
            };
            match slice {
                Ok(slice) => self.slices.register(param.id, slice),
                Err(error) => {
                    self.failed.get_or_insert(error);
                }
            }
        }
    }
    let mut visitor = Slice {
        numbers,
        cut,
        home,
        gradients,
        slices: GradientsParams::new(),
        bytes: 0,
        failed: None,
    };
    model.visit(&mut visitor);
    match visitor.failed {
        Some(error) => Err(error),
        None => Ok((visitor.slices, visitor.bytes)),
    }
}

fn bytes<const D: usize>(tensor: &Tensor<D>) -> u64 {
    (tensor.shape().num_elements() * tensor.dtype().size()) as u64
}

/// How many bytes of trained parameters `model` holds; those that it has not, or not yet, do not count.
pub(crate) fn held_bytes<M: Module>(model: &M) -> u64 {
    #[derive(Default)]
    struct Count {
        counted: Vec<ParamId>,
        bytes: u64,
    }
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_initialized() || self.counted.contains(&param.id) {
                return;
            }
            let value = param.base();
            if value.is_require_grad() {
                self.counted.push(param.id);
                self.bytes += bytes(&value);
            }
        }
    }
    let mut count = Count::default();
    model.visit(&mut count);
    count.bytes
}

/// How many bytes the slices have.
pub(crate) fn bytes_of(slices: &Slices) -> u64 {
    slices.iter().map(|slice| bytes(&slice.base())).sum()
}

/// Waits for the parameters of `model` that are on their way.
pub(crate) fn wait_for_all<M: Module>(model: &M) {
    struct Wait;
    impl ModuleVisitor for Wait {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            drop(param.base());
        }
    }
    model.visit(&mut Wait);
}

/// What a parameter has besides its value: how it is saved and loaded (a layer may keep its weight in another
/// layout).
pub(crate) struct Forms {
    /// `ParamMapper<Tensor<D>>` by the parameter's number.
    mappers: HashMap<usize, Box<dyn Any + Send + Sync>>,
}

impl Forms {
    pub(crate) fn of<M: Module>(model: &M, numbers: &HashMap<ParamId, usize>) -> Self {
        struct Take<'a> {
            numbers: &'a HashMap<ParamId, usize>,
            mappers: HashMap<usize, Box<dyn Any + Send + Sync>>,
        }
        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(number) = self.numbers.get(&param.id) {
                    let (_, _, mapper) = param.clone().consume();
                    self.mappers.insert(*number, Box::new(mapper));
                }
            }
        }
        let mut take = Take {
            numbers,
            mappers: HashMap::new(),
        };
        model.visit(&mut take);
        Self {
            mappers: take.mappers,
        }
    }

    /// `model` with parameters that are on their way.
    pub(crate) fn with_whole<M: Module>(
        &self,
        model: M,
        numbers: &HashMap<ParamId, usize>,
        whole: &Whole,
    ) -> M {
        model.map(&mut Replace {
            forms: self,
            numbers,
            whole: Some(whole),
            known: HashMap::new(),
        })
    }

    /// `model` with parameters that have no values.
    pub(crate) fn without_values<M: Module>(
        &self,
        model: M,
        numbers: &HashMap<ParamId, usize>,
    ) -> M {
        model.map(&mut Replace {
            forms: self,
            numbers,
            whole: None,
            known: HashMap::new(),
        })
    }
}

struct Replace<'a> {
    forms: &'a Forms,
    numbers: &'a HashMap<ParamId, usize>,
    whole: Option<&'a Whole>,
    /// `Param<Tensor<D>>` by its id: tied weights stay one tensor.
    known: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for Replace<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let Some(number) = self.numbers.get(&id).copied() else {
            return param;
        };
        let known = self.known.get(&id);
        if let Some(known) = known.and_then(|known| known.downcast_ref::<Param<Tensor<D>>>()) {
            return known.clone();
        }
        let (device, shape) = (param.lazy_device(), param.lazy_shape());
        let replaced = match self.whole.map(|whole| whole.parameter(number)) {
            Some(parameter) => {
                let at_first_use = move |device: &Device, trained: bool| {
                    parameter.value::<D>(device).set_require_grad(trained)
                };
                Param::uninitialized(id, at_first_use, device, true, shape)
            }
            None => {
                let refuse = move |_: &Device, _: bool| -> Tensor<D> {
                    panic!(
                        "parameter {id} was asked for while this rank has its slice of it only: \
                         `ParameterShards::open` gathers it"
                    )
                };
                Param::uninitialized(id, refuse, device, true, shape)
            }
        };
        let mapper = self.forms.mappers.get(&number);
        let mapper = mapper.and_then(|mapper| mapper.downcast_ref::<ParamMapper<Tensor<D>>>());
        let replaced = match mapper.cloned() {
            None => replaced,
            Some(mapper) => {
                let loads = mapper.clone();
                replaced
                    .load_mapper(move |tensor| loads.on_load(tensor))
                    .save_mapper(move |tensor| mapper.on_save(tensor))
            }
        };
        self.known.insert(id, Box::new(replaced.clone()));
        replaced
    }
}
