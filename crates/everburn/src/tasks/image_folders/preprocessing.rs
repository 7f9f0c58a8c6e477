//! How images become numbers for a pretrained model: its `preprocessor_config.json`.

use std::path::Path;

use everburn_train::TaskError;
use serde_json::{Value, json};

use crate::tasks::json_keys::Keys;

/// The file of a pretrained model's folder that says it.
const FILE: &str = "preprocessor_config.json";

/// The longest such file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// What a folder says of images.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Preprocessing {
    /// Height and width, in pixels.
    pub(super) size: Option<usize>,
    /// The mean of each channel, from 0 to 1.
    pub(super) mean: Option<[f64; 3]>,
    /// Their standard deviations.
    pub(super) std: Option<[f64; 3]>,
}

impl Preprocessing {
    /// What the folder of a pretrained model says; nothing if it has no such file.
    ///
    /// # Errors
    /// The key that is wrong, or asks for what images here do not go through.
    pub(super) fn read(folder: &Path) -> Result<Self, TaskError> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(Self::default());
        }
        let size = std::fs::metadata(&path)?.len();
        let wrong = |reason: String| TaskError::new(format!("{FILE}: {reason}"));
        if size > LONGEST {
            return Err(wrong(format!("it has {size} bytes, and at most {LONGEST}")));
        }
        let text = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let json = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        Self::of(&json)
    }

    fn of(json: &Value) -> Result<Self, TaskError> {
        let keys = Keys::of(FILE, json);
        if !json.is_object() {
            return Err(TaskError::new(format!("{FILE}: it is no object")));
        }
        keys.require(&[("do_rescale", json!(true))])?;
        let factor = keys.number("rescale_factor", 1.0 / 255.0)?;
        if (factor * 255.0 - 1.0).abs() > 1e-6 {
            return Err(keys.wrong("rescale_factor", "a rescale_factor of 1/255"));
        }
        let (mean, std) = match keys.flag("do_normalize", true)? {
            true => (channels(keys, "image_mean")?, channels(keys, "image_std")?),
            false => (Some([0.0; 3]), Some([1.0; 3])),
        };
        if std.is_some_and(|std| std.contains(&0.0)) {
            return Err(keys.wrong("image_std", "numbers that are not 0"));
        }
        // A part of the scaled image may be the model's.
        let cropped = keys.flag("do_center_crop", false)? && !json["crop_size"].is_null();
        let key = match cropped {
            true => "crop_size",
            false => "size",
        };
        let size = side(keys, key)?;
        Ok(Self { size, mean, std })
    }

    /// The file for images of this size.
    pub(super) fn to_json(size: usize, mean: [f64; 3], std: [f64; 3]) -> Value {
        json!({
            // Scales the image to the size, and cuts nothing off.
            "image_processor_type": "ViTImageProcessor",
            "do_resize": true,
            "size": {"height": size, "width": size},
            "resample": 2, // bilinear
            "do_rescale": true,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": mean,
            "image_std": std,
        })
    }
}

/// Three numbers, of red, green and blue, or one for all.
fn channels(keys: Keys<'_>, key: &str) -> Result<Option<[f64; 3]>, TaskError> {
    let value = &keys.json[key];
    if value.is_null() {
        return Ok(None);
    }
    let numbers = match value.as_array() {
        Some(numbers) => numbers
            .iter()
            .map(Value::as_f64)
            .collect::<Option<Vec<_>>>(),
        None => value.as_f64().map(|number| vec![number; 3]),
    };
    let numbers = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
    let numbers = numbers.filter(|numbers| numbers.iter().all(|number| number.abs() < 1e6));
    let wrong = || keys.wrong(key, "a number for each of red, green and blue");
    numbers.map(Some).ok_or_else(wrong)
}

/// The side of a square: a number, or one by its sides.
fn side(keys: Keys<'_>, key: &str) -> Result<Option<usize>, TaskError> {
    let value = &keys.json[key];
    let found = match value {
        Value::Null => return Ok(None),
        Value::Object(sides) => {
            let of = |name: &str| sides.get(name).and_then(Value::as_u64);
            of("shortest_edge")
                .or_else(|| of("height").filter(|height| of("width") == Some(*height)))
        }
        value => value.as_u64(),
    };
    let found = found.and_then(|side| usize::try_from(side).ok());
    let found = found.filter(|side| (1..=1 << 14).contains(side));
    let wrong = || keys.wrong(key, "images as high as wide, of 1 to 16384 pixels a side");
    found.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_statistics_are_read_in_all_their_forms() {
        let of = |json: Value| Preprocessing::of(&json).unwrap();
        let half = Some([0.5; 3]);
        let vit = of(
            json!({"size": {"height": 32, "width": 32}, "image_mean": [0.5, 0.5, 0.5],
            "image_std": 0.5, "rescale_factor": 0.00392156862745098}),
        );
        let expected = Preprocessing {
            size: Some(32),
            mean: half,
            std: half,
        };
        assert_eq!(vit, expected);
        assert_eq!(of(json!({"size": 64})).size, Some(64));
        let cropped =
            json!({"size": {"shortest_edge": 256}, "do_center_crop": true, "crop_size": 224});
        assert_eq!(of(cropped).size, Some(224));
        let raw = of(json!({"do_normalize": false}));
        assert_eq!((raw.mean, raw.std), (Some([0.0; 3]), Some([1.0; 3])));
        assert_eq!(of(Preprocessing::to_json(32, [0.5; 3], [0.5; 3])), expected);
    }

    #[test]
    fn what_images_do_not_go_through_is_refused_by_its_key() {
        for (key, value) in [
            ("size", json!({"height": 32, "width": 64})),
            ("size", json!(0)),
            ("size", json!(1_u64 << 60)),
            ("image_mean", json!([0.5, 0.5])),
            ("image_mean", json!(["a", "b", "c"])),
            ("image_std", json!([0.5, 0.0, 0.5])),
            ("do_rescale", json!(false)),
            ("rescale_factor", json!(1.0)),
            ("do_normalize", json!("yes")),
        ] {
            let error = Preprocessing::of(&json!({ key: value }))
                .unwrap_err()
                .to_string();
            assert!(error.contains(FILE) && error.contains(key), "{error}");
        }
        assert!(Preprocessing::of(&json!([1])).is_err());
    }
}
