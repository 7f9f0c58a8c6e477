//! How images become numbers for a pretrained model: its `preprocessor_config.json`.

use std::path::Path;

use everburn_train::TaskError;
use serde_json::{Value, json};

use crate::tasks::json_keys::{Keys, read_json};

/// The file of a pretrained model's folder that says it.
const FILE: &str = "preprocessor_config.json";

/// What a folder says of images.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Preprocessing {
    /// Height and width, in pixels.
    pub(super) size: Option<[usize; 2]>,
    /// The mean of each channel, from 0 to 1; the same one three times of grey images.
    pub(super) mean: Option<[f64; 3]>,
    /// Their standard deviations.
    pub(super) std: Option<[f64; 3]>,
}

impl Preprocessing {
    /// What the folder of a pretrained model says of images with this many channels; nothing if it has no such file.
    ///
    /// # Errors
    /// The key that is wrong, or asks for what images here do not go through.
    pub(super) fn read(folder: &Path, channels: usize) -> Result<Self, TaskError> {
        match read_json(folder, FILE)? {
            None => Ok(Self::default()),
            Some(json) => Self::of(&json, channels),
        }
    }

    fn of(json: &Value, channels: usize) -> Result<Self, TaskError> {
        let keys = Keys::of(FILE, json);
        if !json.is_object() {
            return Err(TaskError::new(format!("{FILE}: it is no object")));
        }
        keys.require(&[("do_rescale", json!(true))])?;
        let factor = keys.number("rescale_factor", 1.0 / 255.0)?;
        if (factor * 255.0 - 1.0).abs() > 1e-6 {
            return Err(keys.unsupported("rescale_factor", "1/255"));
        }
        let (mean, std) = match keys.flag("do_normalize", true)? {
            true => (
                statistics(keys, "image_mean", channels)?,
                statistics(keys, "image_std", channels)?,
            ),
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
        let size = sides(keys, key)?;
        Ok(Self { size, mean, std })
    }

    /// The file for images of this size and number of channels.
    pub(super) fn to_json(
        [height, width]: [usize; 2],
        channels: usize,
        [mean, std]: [[f64; 3]; 2],
    ) -> Value {
        // Of grey images, the mean of the colors, as their batcher has it.
        let of_channels = |values: [f64; 3]| match channels {
            1 => vec![values.iter().sum::<f64>() / 3.0],
            _ => values.to_vec(),
        };
        json!({
            // Scales the image to the size, and cuts nothing off.
            "image_processor_type": "ViTImageProcessor",
            "do_resize": true,
            "size": {"height": height, "width": width},
            "resample": 2, // bilinear
            "do_rescale": true,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": of_channels(mean),
            "image_std": of_channels(std),
        })
    }
}

/// A number of each channel, or one of all.
fn statistics(keys: Keys<'_>, key: &str, channels: usize) -> Result<Option<[f64; 3]>, TaskError> {
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
    let numbers = numbers.and_then(|numbers| match (channels, numbers.as_slice()) {
        (1, [grey]) => Some([*grey; 3]),
        (_, numbers) => <[f64; 3]>::try_from(numbers).ok(),
    });
    let numbers = numbers.filter(|numbers| numbers.iter().all(|number| number.abs() < 1e6));
    let wrong = || keys.wrong(key, "a number for each channel");
    numbers.map(Some).ok_or_else(wrong)
}

/// Height and width: one number of both, or one by its sides.
fn sides(keys: Keys<'_>, key: &str) -> Result<Option<[usize; 2]>, TaskError> {
    let side = |value: &Value| {
        let side = usize::try_from(value.as_u64()?).ok()?;
        (1..=1 << 14).contains(&side).then_some(side)
    };
    let both = |value: &Value| side(value).map(|side| [side, side]);
    let found = match &keys.json[key] {
        Value::Null => return Ok(None),
        Value::Object(sides) => match sides.get("shortest_edge") {
            Some(edge) => both(edge),
            None => {
                let of = |name: &str| sides.get(name).and_then(side);
                of("height").zip(of("width")).map(<[usize; 2]>::from)
            }
        },
        value => both(value),
    };
    let wrong = || keys.wrong(key, "images of 1 to 16384 pixels a side");
    found.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_statistics_are_read_in_all_their_forms() {
        let of = |json: Value| Preprocessing::of(&json, 3).unwrap();
        let half = Some([0.5; 3]);
        let vit = of(
            json!({"size": {"height": 32, "width": 32}, "image_mean": [0.5, 0.5, 0.5],
            "image_std": 0.5, "rescale_factor": 0.00392156862745098}),
        );
        let expected = Preprocessing {
            size: Some([32, 32]),
            mean: half,
            std: half,
        };
        assert_eq!(vit, expected);
        assert_eq!(of(json!({"size": 64})).size, Some([64, 64]));
        let cropped =
            json!({"size": {"shortest_edge": 256}, "do_center_crop": true, "crop_size": 224});
        assert_eq!(of(cropped).size, Some([224, 224]));
        let raw = of(json!({"do_normalize": false}));
        assert_eq!((raw.mean, raw.std), (Some([0.0; 3]), Some([1.0; 3])));
        let written = Preprocessing::to_json([32, 32], 3, [[0.5; 3]; 2]);
        assert_eq!(of(written), expected);
        // Sides that differ, and grey images.
        let written = Preprocessing::to_json([32, 48], 1, [[0.25, 0.5, 0.75], [0.5; 3]]);
        assert_eq!(written["image_mean"], json!([0.5]));
        let expected = Preprocessing {
            size: Some([32, 48]),
            ..expected
        };
        assert_eq!(Preprocessing::of(&written, 1).unwrap(), expected);
    }

    #[test]
    fn what_images_do_not_go_through_is_refused_by_its_key() {
        for (key, value) in [
            ("size", json!({"height": 32})),
            ("size", json!({"height": 32, "width": 0})),
            ("size", json!(0)),
            ("size", json!(1_u64 << 60)),
            ("image_mean", json!([0.5, 0.5])),
            ("image_mean", json!(["a", "b", "c"])),
            ("image_std", json!([0.5, 0.0, 0.5])),
            ("do_rescale", json!(false)),
            ("rescale_factor", json!(1.0)),
            ("do_normalize", json!("yes")),
        ] {
            let error = Preprocessing::of(&json!({ key: value }), 3)
                .unwrap_err()
                .to_string();
            assert!(error.contains(FILE) && error.contains(key), "{error}");
        }
        assert!(Preprocessing::of(&json!([1]), 3).is_err());
    }
}
