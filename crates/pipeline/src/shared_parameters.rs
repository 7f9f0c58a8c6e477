//! Parameters that several stages hold, and the norm of all stages' gradients.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{ProcessGroup, ReduceOp};
use everburn_distributed::clip_coefficient;

use crate::error::PipelineError;

/// The parameters of a model over the ranks of a pipeline: those that several of them hold (an
/// embedding that is also the head, say), whose gradients are to be added up so that all copies stay
/// equal (Narayanan et al. 2021, section 2.2), and those that count for the norm.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_pipeline as pipeline; }
/// use burn::nn::LinearConfig;
/// use burn::optim::GradientsParams;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::pipeline::SharedParameters;
///
/// let groups = ProcessGroup::over_threads(2, GroupOptions::default());
/// let ranks = groups.into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let device = Device::flex();
///         let layer = LinearConfig::new(1, 1).with_bias(false).init(&device);
///         let holders = [("weight".to_string(), vec![0, 1])];
///         let shared = SharedParameters::new(group, &holders).unwrap();
///         let mut gradients = GradientsParams::new();
///         gradients.register(layer.weight.id, Tensor::<2>::ones([1, 1], &device));
///         let sum = shared.sum(&layer, gradients).unwrap();
///         sum.get::<2>(layer.weight.id).unwrap().into_scalar::<f32>()
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap(), 2.0);
/// }
/// ```
#[derive(Debug)]
pub struct SharedParameters {
    /// The ranks whose gradients make up the norm.
    norm: ProcessGroup,
    /// By position: the ranks that share it, if this rank is among them.
    groups: HashMap<usize, ProcessGroup>,
    /// By position: whether this rank's gradient counts for the norm.
    counted: Vec<bool>,
    /// By position.
    paths: Vec<String>,
}

impl SharedParameters {
    /// `holders` has, for each parameter in the order of the model's fields, the ranks of `pipeline` that
    /// hold it. All ranks of the pipeline call it alike.
    ///
    /// # Errors
    /// [`PipelineError::Collective`] if the ranks cannot form their groups.
    pub fn new(
        pipeline: ProcessGroup,
        holders: &[(String, Vec<usize>)],
    ) -> Result<Self, PipelineError> {
        let mut known: HashMap<&[usize], Option<ProcessGroup>> = HashMap::new();
        let mut groups = HashMap::new();
        for (position, (_, ranks)) in holders.iter().enumerate() {
            if ranks.len() < 2 {
                continue;
            }
            if !known.contains_key(ranks.as_slice()) {
                let group = pipeline.subgroup(ranks)?;
                known.insert(ranks, group.map(|group| group.named("shared parameters")));
            }
            if let Some(Some(group)) = known.get(ranks.as_slice()) {
                groups.insert(position, group.clone());
            }
        }
        let rank = pipeline.rank();
        let owned = holders
            .iter()
            .map(|(_, ranks)| ranks.first() == Some(&rank));
        Ok(Self {
            counted: owned.collect(),
            paths: holders.iter().map(|(path, _)| path.clone()).collect(),
            groups,
            norm: pipeline,
        })
    }

    /// The same, whose norm is that of the gradients on all ranks of `group`: those of the pipeline, and
    /// others that hold parts of its parameters. `counts` says for each parameter's path whether this
    /// rank's part counts, if the rank is also the first of its pipeline that holds it: what several
    /// ranks have alike counts on one.
    #[must_use]
    pub fn with_norm_over(mut self, group: ProcessGroup, counts: impl Fn(&str) -> bool) -> Self {
        for (counted, path) in self.counted.iter_mut().zip(&self.paths) {
            *counted &= counts(path);
        }
        self.norm = group;
        self
    }

    /// Adds up the gradients of shared parameters over the ranks that hold them.
    ///
    /// # Errors
    /// [`PipelineError`] if a collective fails or a gradient cannot be read.
    pub fn sum<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<GradientsParams, PipelineError> {
        let mut visitor = Sum {
            groups: &self.groups,
            paths: &self.paths,
            walk: Walk::default(),
            gradients,
            result: Ok(()),
        };
        if !self.groups.is_empty() {
            model.visit(&mut visitor);
        }
        visitor.result.map(|()| visitor.gradients)
    }

    /// Checks that the ranks which share a parameter hold the same numbers. All of them call it.
    ///
    /// # Errors
    /// [`PipelineError::Parameter`], on all of them, if they do not; [`PipelineError`] if a collective fails.
    pub fn verify<M: Module>(&self, model: &M) -> Result<(), PipelineError> {
        let mut visitor = Verify {
            groups: &self.groups,
            paths: &self.paths,
            walk: Walk::default(),
            result: Ok(()),
        };
        if !self.groups.is_empty() {
            model.visit(&mut visitor);
        }
        visitor.result
    }

    /// The norm of all gradients of all ranks together, each parameter counted once; where it is above
    /// `max`, the gradients are made smaller by the same factor on all ranks.
    ///
    /// # Errors
    /// [`PipelineError::NotFinite`], on all ranks, if the norm is not a number; [`PipelineError`] if the
    /// exchange fails.
    pub fn clip<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
        max: f64,
    ) -> Result<(GradientsParams, f64), PipelineError> {
        let mut squares = Squares {
            counted: &self.counted,
            walk: Walk::default(),
            gradients: &gradients,
            sum: 0.0,
        };
        model.visit(&mut squares);
        let mut sum = [squares.sum];
        self.norm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        let norm = sum[0].sqrt();
        if !norm.is_finite() {
            return Err(PipelineError::NotFinite);
        }
        let factor = clip_coefficient(norm, max);
        if factor == 1.0 {
            return Ok((gradients, norm));
        }
        let mut scale = Scale { gradients, factor };
        model.visit(&mut scale);
        Ok((scale.gradients, norm))
    }
}

/// Where a visitor stands.
#[derive(Default)]
struct Walk {
    position: usize,
}

impl Walk {
    fn next(&mut self) -> usize {
        self.position += 1;
        self.position - 1
    }
}

struct Sum<'a> {
    groups: &'a HashMap<usize, ProcessGroup>,
    paths: &'a [String],
    walk: Walk,
    gradients: GradientsParams,
    result: Result<(), PipelineError>,
}

impl Sum<'_> {
    fn over<const D: usize>(
        &mut self,
        group: &ProcessGroup,
        path: &str,
        param: &Param<Tensor<D>>,
    ) -> Result<(), PipelineError> {
        let shape = param.lazy_shape();
        let gradient = self.gradients.remove::<D>(param.id);
        let has_one = gradient.is_some();
        let (device, dtype) = match &gradient {
            Some(gradient) => (gradient.device(), gradient.dtype()),
            None => (param.lazy_device().inner(), param.val().dtype()),
        };
        let mut values = match gradient {
            Some(gradient) => {
                let data = gradient.without_autodiff().try_into_data();
                let data = data.map_err(|error| PipelineError::Parameter {
                    path: path.to_string(),
                    reason: error.to_string(),
                })?;
                data.iter::<f32>().collect::<Vec<_>>()
            }
            None => vec![0.0; shape.num_elements()],
        };
        // After them, whether there is one: what nobody used keeps no gradient.
        values.push(f32::from(u8::from(has_one)));
        group.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        if values.pop() > Some(0.0) {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            let sum = Tensor::<D>::from_data(data, (&device, dtype));
            self.gradients.register(param.id, sum);
        }
        Ok(())
    }
}

impl ModuleVisitor for Sum<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let position = self.walk.next();
        let group = self.groups.get(&position);
        if let (Some(group), Ok(())) = (group, &self.result) {
            let path = &self.paths[position];
            self.result = self.over(group, path, param);
        }
    }

    everburn_nn::walking! { visit others self, _param => self.walk.next() }
}

struct Verify<'a> {
    groups: &'a HashMap<usize, ProcessGroup>,
    paths: &'a [String],
    walk: Walk,
    result: Result<(), PipelineError>,
}

impl Verify<'_> {
    fn compare<const D: usize>(
        group: &ProcessGroup,
        path: &str,
        param: &Param<Tensor<D>>,
    ) -> Result<(), PipelineError> {
        let wrong = |reason: String| PipelineError::Parameter {
            path: path.to_string(),
            reason,
        };
        let data = param.val().without_autodiff().try_into_data();
        let data = data.map_err(|error| wrong(error.to_string()))?;
        let mut hash = DefaultHasher::new();
        data.as_bytes().hash(&mut hash);
        let all = group.all_gather(vec![hash.finish() as i64]).wait()?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(rank) => Err(wrong(format!(
                "rank {rank}, which shares it, has other values than the first"
            ))),
        }
    }
}

impl ModuleVisitor for Verify<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let position = self.walk.next();
        let group = self.groups.get(&position);
        if let (Some(group), Ok(())) = (group, &self.result) {
            self.result = Self::compare(group, &self.paths[position], param);
        }
    }

    everburn_nn::walking! { visit others self, _param => self.walk.next() }
}

struct Squares<'a> {
    counted: &'a [bool],
    walk: Walk,
    gradients: &'a GradientsParams,
    sum: f64,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let position = self.walk.next();
        if !self.counted.get(position).copied().unwrap_or(false) {
            return;
        }
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            // What cannot be read is not a number, which is an error on all ranks.
            self.sum += match gradient.without_autodiff().try_into_data() {
                Ok(data) => data.iter::<f64>().map(|value| value * value).sum(),
                Err(_) => f64::NAN,
            };
        }
    }

    everburn_nn::walking! { visit others self, _param => self.walk.next() }
}

struct Scale {
    gradients: GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let scaled = gradient.mul_scalar(self.factor);
            self.gradients.register(param.id, scaled);
        }
    }
}
