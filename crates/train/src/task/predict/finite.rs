//! Whether all numbers of a prediction are finite: JSON has no others, and `null` would be written in their place.

use std::fmt::{self, Display};

use serde::ser::{
    self, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// The first number of `prediction` that is NaN or infinite, with where it is, in words.
pub(super) fn not_finite(prediction: &impl Serialize) -> Option<String> {
    match prediction.serialize(Look) {
        Err(SearchEnd::NotFinite { place, what }) if place.is_empty() => Some(format!("is {what}")),
        Err(SearchEnd::NotFinite { place, what }) => Some(format!("has {what} in `{place}`")),
        // What cannot be written is an error where it is written.
        Ok(()) | Err(SearchEnd::Other) => None,
    }
}

/// Why no more of a prediction is looked at.
#[derive(Debug)]
enum SearchEnd {
    NotFinite { place: String, what: &'static str },
    Other,
}

impl SearchEnd {
    /// The same one level further out.
    fn within(self, outer: &str) -> Self {
        match self {
            Self::NotFinite { place, what } => {
                let dot = match place.is_empty() || place.starts_with('[') {
                    true => "",
                    false => ".",
                };
                let place = format!("{outer}{dot}{place}");
                Self::NotFinite { place, what }
            }
            Self::Other => Self::Other,
        }
    }
}

impl Display for SearchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a finite number")
    }
}

impl std::error::Error for SearchEnd {}

impl ser::Error for SearchEnd {
    fn custom<T: Display>(_: T) -> Self {
        Self::Other
    }
}

/// Looks at every number, and writes nothing.
struct Look;

/// The same for a list, a map or a structure, with how many of it were looked at, and the last key.
#[derive(Default)]
struct Parts {
    seen: usize,
    key: String,
}

impl Parts {
    fn next<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), SearchEnd> {
        let place = format!("[{}]", self.seen);
        self.seen += 1;
        value.serialize(Look).map_err(|found| found.within(&place))
    }
}

/// Values that are finite whatever they are.
macro_rules! finite {
    ($($name:ident($($of:ty),*);)*) => {
        $(fn $name(self, $(_: $of),*) -> Result<(), SearchEnd> {
            Ok(())
        })*
    };
}

/// Beginnings of what has parts.
macro_rules! parts {
    ($($name:ident($($of:ty),*);)*) => {
        $(fn $name(self, $(_: $of),*) -> Result<Parts, SearchEnd> {
            Ok(Parts::default())
        })*
    };
}

impl Serializer for Look {
    type Ok = ();
    type Error = SearchEnd;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    finite! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    parts! {
        serialize_seq(Option<usize>);
        serialize_tuple(usize);
        serialize_tuple_struct(&'static str, usize);
        serialize_tuple_variant(&'static str, u32, &'static str, usize);
        serialize_map(Option<usize>);
        serialize_struct(&'static str, usize);
        serialize_struct_variant(&'static str, u32, &'static str, usize);
    }

    fn serialize_f32(self, number: f32) -> Result<(), SearchEnd> {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Result<(), SearchEnd> {
        let what = match number.is_nan() {
            _ if number.is_finite() => return Ok(()),
            true => "a NaN",
            false => "an infinite number",
        };
        let place = String::new();
        Err(SearchEnd::NotFinite { place, what })
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), SearchEnd> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), SearchEnd> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), SearchEnd> {
        value.serialize(self).map_err(|found| found.within(variant))
    }
}

/// Parts without names.
macro_rules! numbered {
    ($($of:ident::$name:ident;)*) => {
        $(impl $of for Parts {
            type Ok = ();
            type Error = SearchEnd;

            fn $name<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), SearchEnd> {
                self.next(value)
            }

            fn end(self) -> Result<(), SearchEnd> {
                Ok(())
            }
        })*
    };
}

numbered! {
    SerializeSeq::serialize_element;
    SerializeTuple::serialize_element;
    SerializeTupleStruct::serialize_field;
    SerializeTupleVariant::serialize_field;
}

/// Parts with names.
macro_rules! named {
    ($($of:ident;)*) => {
        $(impl $of for Parts {
            type Ok = ();
            type Error = SearchEnd;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), SearchEnd> {
                value.serialize(Look).map_err(|found| found.within(name))
            }

            fn end(self) -> Result<(), SearchEnd> {
                Ok(())
            }
        })*
    };
}

named! {
    SerializeStruct;
    SerializeStructVariant;
}

impl SerializeMap for Parts {
    type Ok = ();
    type Error = SearchEnd;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), SearchEnd> {
        let key = serde_json::to_string(key).unwrap_or_default();
        self.key = key.trim_matches('"').to_owned();
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), SearchEnd> {
        value
            .serialize(Look)
            .map_err(|found| found.within(&self.key))
    }

    fn end(self) -> Result<(), SearchEnd> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    struct Scores {
        class: Option<&'static str>,
        probabilities: Vec<f32>,
        more: BTreeMap<&'static str, (u8, Option<f64>)>,
    }

    fn found(probability: f32, more: f64) -> Option<String> {
        not_finite(&Scores {
            class: None,
            probabilities: vec![0.5, probability],
            more: BTreeMap::from([("mean", (1, Some(more)))]),
        })
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_is() {
        assert_eq!(found(0.5, 1e300), None);
        let first = Some("has a NaN in `probabilities[1]`".to_owned());
        assert_eq!(found(f32::NAN, f64::NAN), first);
        let deep = Some("has an infinite number in `more.mean[1]`".to_owned());
        assert_eq!(found(0.5, f64::NEG_INFINITY), deep);
        assert_eq!(not_finite(&f32::NAN), Some("is a NaN".to_owned()));
        assert_eq!(not_finite(&(1, "NaN", ())), None);
    }
}
