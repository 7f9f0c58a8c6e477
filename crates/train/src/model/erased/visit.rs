//! Visits of parameters through a box.
//!
//! Burn's visitors and mappers have methods with the number of dimensions as a parameter, which a trait object
//! cannot have. These hand each parameter over as [`Any`] with that number beside it.

use std::any::Any;

use burn::module::{Flag, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::{Bool, Int};

use super::WRONG_TYPE;

/// Runs a block with the constant `$D` set to `$dimensions`.
macro_rules! with_dimensions {
    ($dimensions:expr, $D:ident => $block:expr) => {
        with_dimensions!(@ $dimensions, $D => $block, 1 2 3 4 5 6 7 8)
    };
    (@ $dimensions:expr, $D:ident => $block:expr, $($number:literal)*) => {
        match $dimensions {
            $($number => {
                const $D: usize = $number;
                $block
            })*
            other => panic!("a parameter has {other} dimensions, and 1 to 8 are supported"),
        }
    };
}

/// A [`ModuleVisitor`] as a trait object.
pub(super) trait AnyVisitor {
    fn float(&mut self, param: &dyn Any, dimensions: usize);
    fn int(&mut self, param: &dyn Any, dimensions: usize);
    fn boolean(&mut self, param: &dyn Any, dimensions: usize);
    fn flag(&mut self, flag: &Param<Flag>);
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
    fn float_at(&mut self, path: &[String], id: ParamId, tensor: &dyn Any, dimensions: usize);
    fn int_at(&mut self, path: &[String], id: ParamId, tensor: &dyn Any, dimensions: usize);
    fn boolean_at(&mut self, path: &[String], id: ParamId, tensor: &dyn Any, dimensions: usize);
}

fn look<T: 'static>(value: &dyn Any) -> &T {
    value.downcast_ref().expect(WRONG_TYPE)
}

impl<V: ModuleVisitor> AnyVisitor for V {
    fn float(&mut self, param: &dyn Any, dimensions: usize) {
        with_dimensions!(dimensions, D => self.visit_float(look::<Param<Tensor<D>>>(param)));
    }

    fn int(&mut self, param: &dyn Any, dimensions: usize) {
        with_dimensions!(dimensions, D => self.visit_int(look::<Param<Tensor<D, Int>>>(param)));
    }

    fn boolean(&mut self, param: &dyn Any, dimensions: usize) {
        with_dimensions!(dimensions, D => self.visit_bool(look::<Param<Tensor<D, Bool>>>(param)));
    }

    fn flag(&mut self, flag: &Param<Flag>) {
        self.visit_flag(flag);
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.enter_module(name, container);
    }

    fn exit(&mut self, name: &str, container: &str) {
        self.exit_module(name, container);
    }

    fn float_at(&mut self, path: &[String], id: ParamId, tensor: &dyn Any, dimensions: usize) {
        with_dimensions!(dimensions, D => self.visit_float_with_path(path, id, look::<Tensor<D>>(tensor)));
    }

    fn int_at(&mut self, path: &[String], id: ParamId, tensor: &dyn Any, dimensions: usize) {
        with_dimensions!(dimensions, D => self.visit_int_with_path(path, id, look::<Tensor<D, Int>>(tensor)));
    }

    fn boolean_at(&mut self, path: &[String], id: ParamId, tensor: &dyn Any, dimensions: usize) {
        with_dimensions!(dimensions, D => self.visit_bool_with_path(path, id, look::<Tensor<D, Bool>>(tensor)));
    }
}

/// Shows a visitor in a box the parameters of a typed model.
pub(super) struct Visiting<'a>(pub(super) &'a mut dyn AnyVisitor);

impl ModuleVisitor for Visiting<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.float(param, D);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.int(param, D);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.boolean(param, D);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.flag(flag);
    }

    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }

    fn visit_float_with_path<const D: usize>(
        &mut self,
        path: &[String],
        id: ParamId,
        tensor: &Tensor<D>,
    ) {
        self.0.float_at(path, id, tensor, D);
    }

    fn visit_int_with_path<const D: usize>(
        &mut self,
        path: &[String],
        id: ParamId,
        tensor: &Tensor<D, Int>,
    ) {
        self.0.int_at(path, id, tensor, D);
    }

    fn visit_bool_with_path<const D: usize>(
        &mut self,
        path: &[String],
        id: ParamId,
        tensor: &Tensor<D, Bool>,
    ) {
        self.0.boolean_at(path, id, tensor, D);
    }
}

/// A [`ModuleMapper`] as a trait object.
pub(super) trait AnyMapper {
    fn float(&mut self, param: Box<dyn Any>, dimensions: usize) -> Box<dyn Any>;
    fn int(&mut self, param: Box<dyn Any>, dimensions: usize) -> Box<dyn Any>;
    fn boolean(&mut self, param: Box<dyn Any>, dimensions: usize) -> Box<dyn Any>;
    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag>;
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
}

fn open<T: 'static>(value: Box<dyn Any>) -> T {
    *value.downcast().expect(WRONG_TYPE)
}

impl<P: ModuleMapper> AnyMapper for P {
    fn float(&mut self, param: Box<dyn Any>, dimensions: usize) -> Box<dyn Any> {
        with_dimensions!(dimensions, D => Box::new(self.map_float(open::<Param<Tensor<D>>>(param))))
    }

    fn int(&mut self, param: Box<dyn Any>, dimensions: usize) -> Box<dyn Any> {
        with_dimensions!(dimensions, D => Box::new(self.map_int(open::<Param<Tensor<D, Int>>>(param))))
    }

    fn boolean(&mut self, param: Box<dyn Any>, dimensions: usize) -> Box<dyn Any> {
        with_dimensions!(dimensions, D => Box::new(self.map_bool(open::<Param<Tensor<D, Bool>>>(param))))
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.map_flag(flag)
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.enter_module(name, container);
    }

    fn exit(&mut self, name: &str, container: &str) {
        self.exit_module(name, container);
    }
}

/// Hands a mapper in a box the parameters of a typed model.
pub(super) struct Mapping<'a>(pub(super) &'a mut dyn AnyMapper);

impl ModuleMapper for Mapping<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        open(self.0.float(Box::new(param), D))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        open(self.0.int(Box::new(param), D))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        open(self.0.boolean(Box::new(param), D))
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.flag(flag)
    }
}
