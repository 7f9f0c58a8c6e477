//! Classifiers of images against what is known of them.

mod resnet18;
mod resnet50;
mod vit;
