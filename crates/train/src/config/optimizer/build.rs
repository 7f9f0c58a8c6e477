//! Burn's optimizers of a configuration.

use burn::module::ParamGroup;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig,
    ModuleOptimizer, MuonConfig, Optimizer, RmsPropConfig, SgdConfig,
};

use super::adam::{Adam, AdamW, Numbers};
use super::{OptimizerConfig, OptimizerKind};
use crate::config::parameter_groups::{Parameter, Parameters};

/// PyTorch's default for Adam and AdamW; Burn's is larger.
const EPSILON: f64 = 1e-8;

/// Burn's defaults for Adam and AdamW, and PyTorch's.
const BETAS: [f32; 2] = [0.9, 0.999];

/// The parameters of an optimizer.
enum Scope {
    /// All but those of groups.
    All,
    Group(ModuleOptimizer, ParamGroup),
}

impl Scope {
    fn take<O: Optimizer>(self, optimizer: O) -> ModuleOptimizer {
        match self {
            Self::All => optimizer.into(),
            Self::Group(all, group) => all.with_group(group, optimizer, None),
        }
    }
}

/// `$config` with those of the settings that are given.
macro_rules! with_given {
    ($config:expr, $($value:expr => $set:ident),* $(,)?) => {{
        let config = $config;
        $(let config = match $value {
            Some(value) => config.$set(value),
            None => config,
        };)*
        config
    }};
}

fn single(number: Option<f64>) -> Option<f32> {
    number.map(|number| number as f32)
}

fn penalty(weight_decay: f64) -> Option<WeightDecayConfig> {
    (weight_decay > 0.0).then(|| WeightDecayConfig::new(weight_decay as f32))
}

impl OptimizerConfig {
    /// The optimizer of these parameters. The configuration has been checked.
    pub(super) fn build(&self, parameters: &Parameters) -> ModuleOptimizer {
        let everywhere = match self.kind {
            OptimizerKind::Muon => OptimizerKind::AdamW,
            kind => kind,
        };
        let mut all = self.placed(everywhere, self.weight_decay, Scope::All);
        for (weight_decay, group) in parameters.by_weight_decay(self.weight_decay, |_| true) {
            all = self.placed(everywhere, weight_decay, Scope::Group(all, group));
        }
        if self.kind == OptimizerKind::Muon {
            let is_matrix = |parameter: &Parameter| parameter.dimensions == 2;
            if let Some(matrices) = parameters.group(is_matrix) {
                let scope = Scope::Group(all, matrices);
                all = self.placed(OptimizerKind::Muon, self.weight_decay, scope);
            }
            for (weight_decay, group) in parameters.by_weight_decay(self.weight_decay, is_matrix) {
                let scope = Scope::Group(all, group);
                all = self.placed(OptimizerKind::Muon, weight_decay, scope);
            }
        }
        all
    }

    fn placed(&self, kind: OptimizerKind, weight_decay: f64, scope: Scope) -> ModuleOptimizer {
        match kind {
            OptimizerKind::Adam => {
                let numbers = self.one_pass(weight_decay);
                scope.take(Adam::new(self.adam(weight_decay).build(), numbers))
            }
            OptimizerKind::AdamW => {
                let numbers = self.one_pass(weight_decay);
                scope.take(AdamW::new(self.adam_w(weight_decay).build(), numbers))
            }
            OptimizerKind::Sgd => scope.take(self.sgd(weight_decay).build()),
            OptimizerKind::AdaGrad => scope.take(self.adagrad(weight_decay).build()),
            OptimizerKind::Adafactor => scope.take(self.adafactor(weight_decay).build()),
            OptimizerKind::Adan => scope.take(self.adan(weight_decay).build()),
            OptimizerKind::Lamb => scope.take(self.lamb(weight_decay).build()),
            OptimizerKind::Lion => scope.take(self.lion(weight_decay).build()),
            OptimizerKind::Muon => scope.take(self.muon(weight_decay).build()),
            OptimizerKind::RmsProp => scope.take(self.rmsprop(weight_decay).build()),
        }
    }

    /// What Adam and AdamW need for steps in one pass; `None` where Burn alone has what is asked for. The rates
    /// are those of [`Self::adam`] and [`Self::adam_w`].
    fn one_pass(&self, weight_decay: f64) -> Option<Numbers> {
        if self.kind == OptimizerKind::Muon {
            return Some(Numbers {
                betas: BETAS,
                epsilon: EPSILON as f32,
                weight_decay: weight_decay as f32,
            });
        }
        let plain = !self.amsgrad.unwrap_or(false) && !self.cautious_weight_decay.unwrap_or(false);
        plain.then(|| Numbers {
            betas: [
                single(self.beta_1).unwrap_or(BETAS[0]),
                single(self.beta_2).unwrap_or(BETAS[1]),
            ],
            epsilon: self.epsilon.unwrap_or(EPSILON) as f32,
            weight_decay: weight_decay as f32,
        })
    }

    fn adam(&self, weight_decay: f64) -> AdamConfig {
        let config = AdamConfig::new()
            .with_weight_decay(penalty(weight_decay))
            .with_epsilon(self.epsilon.unwrap_or(EPSILON) as f32);
        with_given!(config,
            single(self.beta_1) => with_beta_1,
            single(self.beta_2) => with_beta_2,
            self.amsgrad => with_amsgrad,
        )
    }

    /// With Muon, AdamW updates what is no matrix, with default settings.
    fn adam_w(&self, weight_decay: f64) -> AdamWConfig {
        let config = AdamWConfig::new().with_weight_decay(weight_decay as f32);
        if self.kind == OptimizerKind::Muon {
            return config.with_epsilon(EPSILON as f32);
        }
        let config = config.with_epsilon(self.epsilon.unwrap_or(EPSILON) as f32);
        with_given!(config,
            single(self.beta_1) => with_beta_1,
            single(self.beta_2) => with_beta_2,
            self.amsgrad => with_amsgrad,
            self.cautious_weight_decay => with_cautious_weight_decay,
        )
    }

    fn sgd(&self, weight_decay: f64) -> SgdConfig {
        let momentum = self.momentum.filter(|momentum| *momentum > 0.0);
        SgdConfig::new()
            .with_weight_decay(penalty(weight_decay))
            .with_momentum(momentum.map(|momentum| MomentumConfig {
                momentum,
                dampening: self.dampening.unwrap_or(0.0),
                nesterov: self.nesterov.unwrap_or(false),
            }))
    }

    fn adagrad(&self, weight_decay: f64) -> AdaGradConfig {
        with_given!(AdaGradConfig::new().with_weight_decay(penalty(weight_decay)),
            self.learning_rate_decay => with_lr_decay,
            single(self.epsilon) => with_epsilon,
        )
    }

    fn adafactor(&self, weight_decay: f64) -> AdafactorConfig {
        with_given!(AdafactorConfig::new().with_weight_decay(weight_decay as f32),
            single(self.epsilon_1) => with_epsilon_1,
            single(self.epsilon_2) => with_epsilon_2,
            single(self.clip_threshold) => with_clip_threshold,
            self.decay_rate => with_decay_rate,
            self.relative_step => with_relative_step,
            self.scale_parameter => with_scale_parameter,
        )
    }

    fn adan(&self, weight_decay: f64) -> AdanConfig {
        with_given!(AdanConfig::new().with_weight_decay(weight_decay as f32),
            single(self.beta_1) => with_beta_1,
            single(self.beta_2) => with_beta_2,
            single(self.beta_3) => with_beta_3,
            single(self.epsilon) => with_epsilon,
            self.no_prox => with_no_prox,
        )
    }

    fn lamb(&self, weight_decay: f64) -> LambConfig {
        with_given!(LambConfig::new().with_weight_decay(weight_decay as f32),
            single(self.beta_1) => with_beta_1,
            single(self.beta_2) => with_beta_2,
            single(self.epsilon) => with_epsilon,
            self.trust_ratio => with_use_trust_ratio,
        )
    }

    fn lion(&self, weight_decay: f64) -> LionConfig {
        with_given!(LionConfig::new().with_weight_decay(weight_decay as f32),
            single(self.beta_1) => with_beta_1,
            single(self.beta_2) => with_beta_2,
        )
    }

    fn muon(&self, weight_decay: f64) -> MuonConfig {
        let config = MuonConfig::new()
            .with_weight_decay(penalty(weight_decay))
            .with_adjust_lr_fn(self.adjust_learning_rate.unwrap_or_default().into())
            .with_momentum(MomentumConfig {
                momentum: self.momentum.unwrap_or(0.95),
                dampening: self.dampening.unwrap_or(0.0),
                nesterov: self.nesterov.unwrap_or(true),
            });
        with_given!(config,
            single(self.epsilon) => with_epsilon,
            self.newton_schulz_steps => with_ns_steps,
        )
    }

    fn rmsprop(&self, weight_decay: f64) -> RmsPropConfig {
        with_given!(RmsPropConfig::new().with_weight_decay(penalty(weight_decay)),
            single(self.alpha) => with_alpha,
            single(self.momentum) => with_momentum,
            single(self.epsilon) => with_epsilon,
            self.centered => with_centered,
        )
    }
}
