//! Types that flags and files write as the same text.

/// Serde's two traits for a type that files have as flags do, by its `Display` and `FromStr`.
///
/// ```
/// #[derive(Debug, PartialEq)]
/// struct Port(u16);
///
/// impl std::fmt::Display for Port {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "port {}", self.0)
///     }
/// }
///
/// impl std::str::FromStr for Port {
///     type Err = String;
///
///     fn from_str(text: &str) -> Result<Self, String> {
///         let number = text.strip_prefix("port ").and_then(|number| number.parse().ok());
///         number.map(Self).ok_or_else(|| format!("`{text}` is no port"))
///     }
/// }
///
/// everburn_record::serde_as_text!(Port);
///
/// assert_eq!(serde_json::to_string(&Port(80))?, "\"port 80\"");
/// assert_eq!(serde_json::from_str::<Port>("\"port 80\"")?, Port(80));
/// assert!(serde_json::from_str::<Port>("\"80\"").unwrap_err().to_string().contains("`80` is no port"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    };
}

/// `Display` and `FromStr` of an enum, by the names of its variants. Another text `is` what the literal says.
///
/// ```
/// #[derive(Debug, PartialEq)]
/// enum Side {
///     Left,
///     Right,
/// }
///
/// everburn_record::named!(Side, "neither left nor right", Self::Left => "left", Self::Right => "right");
///
/// assert_eq!("left".parse(), Ok(Side::Left));
/// assert_eq!(Side::Right.to_string(), "right");
/// assert_eq!("up".parse::<Side>(), Err("`up` is neither left nor right".to_string()));
/// ```
#[macro_export]
macro_rules! named {
    ($type:ty, $other:literal, $($variant:path => $name:literal),+ $(,)?) => {
        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    $($variant => $name,)+
                })
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($variant),)+
                    _ => Err(format!(concat!("`{}` is ", $other), text)),
                }
            }
        }
    };
}
