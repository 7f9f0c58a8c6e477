//! What is in the place of a module of Burn's.

/// Makes `$ours`, which has one field `$field` of Burn's type, behave as that to everything that
/// visits, maps, moves or prints modules: the same parameter paths, and the same container type, by
/// which `burn-store` translates names.
macro_rules! drop_in {
    ($ours:ident, $field:ident: $burns:ty) => {
        impl From<$burns> for $ours {
            fn from($field: $burns) -> Self {
                Self { $field }
            }
        }

        impl From<$ours> for $burns {
            fn from(ours: $ours) -> Self {
                ours.$field
            }
        }

        impl std::ops::Deref for $ours {
            type Target = $burns;

            fn deref(&self) -> &$burns {
                &self.$field
            }
        }

        impl std::ops::DerefMut for $ours {
            fn deref_mut(&mut self) -> &mut $burns {
                &mut self.$field
            }
        }

        impl burn::module::Module for $ours {
            fn collect_devices(&self, devices: burn::module::Devices) -> burn::module::Devices {
                self.$field.collect_devices(devices)
            }

            fn fork(self, device: &burn::prelude::Device) -> Self {
                self.$field.fork(device).into()
            }

            fn to_device(self, device: &burn::prelude::Device) -> Self {
                self.$field.to_device(device).into()
            }

            fn train(self) -> Self {
                burn::module::Module::train(self.$field).into()
            }

            fn valid(&self) -> Self {
                self.$field.valid().into()
            }

            fn materialize(self) -> Self {
                self.$field.materialize().into()
            }

            fn visit<V: burn::module::ModuleVisitor>(&self, visitor: &mut V) {
                self.$field.visit(visitor);
            }

            fn map<M: burn::module::ModuleMapper>(self, mapper: &mut M) -> Self {
                self.$field.map(mapper).into()
            }
        }

        impl burn::module::ModuleDisplayDefault for $ours {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                self.$field.content(content)
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(&self.$field)
            }
        }

        impl burn::module::ModuleDisplay for $ours {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                self.$field.custom_settings()
            }

            fn custom_content(
                &self,
                content: burn::module::Content,
            ) -> Option<burn::module::Content> {
                self.$field.custom_content(content)
            }
        }

        impl std::fmt::Display for $ours {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.$field.fmt(f)
            }
        }
    };
}

pub(super) use drop_in;
