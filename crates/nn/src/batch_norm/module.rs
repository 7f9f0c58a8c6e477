//! Batch norm as a module of Burn's.

use std::fmt;

use burn::module::{
    Content, Devices, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
    ModuleVisitor,
};
use burn::nn as burns;
use burn::prelude::*;

use super::{BatchNorm, Membership};
use crate::conversion;

/// The name under which visitors meet the layer: Burn's.
const CONTAINER: &str = "Struct:BatchNorm";

impl From<burns::BatchNorm> for BatchNorm {
    fn from(norm: burns::BatchNorm) -> Self {
        Self::of(norm, None)
    }
}

impl From<BatchNorm> for burns::BatchNorm {
    fn from(norm: BatchNorm) -> Self {
        Self {
            gamma: norm.gamma,
            beta: norm.beta,
            training: norm.training,
            running_mean: norm.running_mean,
            running_var: norm.running_var,
            momentum: norm.momentum,
            epsilon: norm.epsilon,
        }
    }
}

/// Written by hand so that visitors meet Burn's module in this one's place: the same paths, and the
/// same container type, by which `burn-store` translates names and leaves batch norms in `f32`.
impl Module for BatchNorm {
    fn collect_devices(&self, devices: Devices) -> Devices {
        let devices = self.gamma.collect_devices(devices);
        let devices = self.beta.collect_devices(devices);
        let devices = self.training.collect_devices(devices);
        let devices = self.running_mean.collect_devices(devices);
        self.running_var.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with(|norm| norm.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with(|norm| norm.to_device(device))
    }

    fn train(self) -> Self {
        self.with(Module::train)
    }

    fn valid(&self) -> Self {
        Self {
            gamma: self.gamma.valid(),
            beta: self.beta.valid(),
            training: self.training.valid(),
            running_mean: self.running_mean.valid(),
            running_var: self.running_var.valid(),
            momentum: self.momentum,
            epsilon: self.epsilon,
            membership: self.membership.clone(),
        }
    }

    fn materialize(self) -> Self {
        self.with(Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visit_field("gamma", &self.gamma, visitor);
        visit_field("beta", &self.beta, visitor);
        visit_field("training", &self.training, visitor);
        visit_field("running_mean", &self.running_mean, visitor);
        visit_field("running_var", &self.running_var, visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let membership = conversion::converted(self.membership.clone());
        let norm = conversion::inside(|| burns::BatchNorm::from(self).map(mapper));
        Self::of(norm, membership)
    }
}

fn visit_field<V: ModuleVisitor>(name: &str, field: &impl Module, visitor: &mut V) {
    visitor.enter_module(name, CONTAINER);
    field.visit(visitor);
    visitor.exit_module(name, CONTAINER);
}

impl BatchNorm {
    fn of(norm: burns::BatchNorm, membership: Option<Membership>) -> Self {
        let burns::BatchNorm {
            gamma,
            beta,
            training,
            running_mean,
            running_var,
            momentum,
            epsilon,
        } = norm;
        Self {
            gamma,
            beta,
            training,
            running_mean,
            running_var,
            momentum,
            epsilon,
            membership,
        }
    }

    fn with(self, change: impl FnOnce(burns::BatchNorm) -> burns::BatchNorm) -> Self {
        let membership = self.membership.clone();
        Self::of(change(self.into()), membership)
    }

    /// Burn's module, to be looked at: its parameters are copies.
    fn as_burns(&self) -> burns::BatchNorm {
        self.clone().into()
    }

    fn described(&self, content: Content) -> Content {
        match self.world_size() {
            1 => content,
            ranks => content.add("ranks", &ranks),
        }
    }
}

impl ModuleDisplayDefault for BatchNorm {
    fn content(&self, content: Content) -> Option<Content> {
        let content = self.as_burns().content(content)?;
        Some(self.described(content))
    }

    fn num_params(&self) -> usize {
        Module::num_params(&self.gamma)
            + Module::num_params(&self.beta)
            + Module::num_params(&self.running_mean)
            + Module::num_params(&self.running_var)
    }
}

impl ModuleDisplay for BatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        self.as_burns().custom_settings()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let content = self.as_burns().custom_content(content)?;
        Some(self.described(content))
    }
}

impl fmt::Display for BatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format(DisplaySettings::default()))
    }
}
