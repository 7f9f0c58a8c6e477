use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::*;

/// Counts up from 0 along rows, then channels.
fn image([height, width]: [usize; 2]) -> RgbItem {
    let pixels: Vec<u8> = (0..3 * height * width).map(|at| at as u8).collect();
    RgbItem {
        pixels: pixels.into(),
        size: [height, width],
        file: Path::new("a.png").into(),
        class: 2,
        mixed: None,
    }
}

fn changed(text: &str, seed: u64) -> Vec<u8> {
    let augmentation: ImageAugmentation = text.parse().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    augmentation.rgb(image([6, 8]), &mut rng).pixels.to_vec()
}

#[test]
fn every_change_is_drawn_anew_and_repeated_by_the_same_numbers() {
    for text in [
        "crop", "flip", "color", "rotate", "shift", "erase:1", "rand",
    ] {
        let results: Vec<Vec<u8>> = (0..40).map(|seed| changed(text, seed)).collect();
        assert!(
            results.iter().all(|pixels| pixels.len() == 3 * 6 * 8),
            "{text}"
        );
        assert_eq!(results[3], changed(text, 3), "{text}");
        let different = results
            .iter()
            .filter(|pixels| **pixels != results[0])
            .count();
        assert!(different > 10, "{text}: {different}");
    }
    assert_eq!(changed("none", 1), image([6, 8]).pixels.to_vec());
}

#[test]
fn a_flip_exchanges_left_and_right_exactly() {
    let old = image([6, 8]).pixels;
    let flipped = (0..40)
        .map(|seed| changed("flip", seed))
        .find(|new| **new != *old)
        .unwrap();
    for (row, new) in old.chunks(8).zip(flipped.chunks(8)) {
        assert_eq!(row.iter().rev().copied().collect::<Vec<_>>(), new);
    }
}

#[test]
fn maps_move_pixels_to_where_they_say() {
    // [1, 2, 3]: a bright pixel in the middle of the second row's end.
    let pixels = [0, 0, 0, 0, 0, 255];
    let moved = |map: Affine| map.resample(&pixels, [1, 2, 3]);
    assert_eq!(moved(Affine::shift(-1.0, 0.0)), [0, 0, 0, 0, 255, 0]);
    assert_eq!(moved(Affine::shift(0.0, -1.0)), [0, 0, 255, 0, 0, 0]);
    assert_eq!(moved(Affine::rotation(180.0)), [255, 0, 0, 0, 0, 0]);
    // First to the left, then flipped: it is in the middle, and stays there.
    let both = Affine::shift(-1.0, 0.0).of(Affine::flip());
    assert_eq!(moved(both), [0, 0, 0, 0, 255, 0]);
    let both = Affine::flip().of(Affine::shift(1.0, 0.0));
    assert_eq!(moved(both), [0, 0, 0, 0, 255, 0]);
    // A quarter turn of a square: clockwise, as angles are counted downwards.
    let square = [255, 0, 0, 0];
    assert_eq!(
        Affine::rotation(90.0).resample(&square, [1, 2, 2]),
        [0, 255, 0, 0]
    );
}

#[test]
fn a_crop_shows_a_part_of_the_image_without_black() {
    let bright = RgbItem {
        pixels: vec![200; 3 * 16 * 12].into(),
        size: [16, 12],
        file: Path::new("a.png").into(),
        class: 0,
        mixed: None,
    };
    let crop: ImageAugmentation = "crop:0.1".parse().unwrap();
    for seed in 0..50 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let part = crop.rgb(bright.clone(), &mut rng);
        assert!(part.pixels.iter().all(|value| *value == 200), "{seed}");
    }
}

#[test]
fn colours_change_as_in_pillow() {
    let apply = |change: ColorChange, pixels: &[u8], shape| {
        let mut pixels = pixels.to_vec();
        change.apply(&mut pixels, shape);
        pixels
    };
    let row = [1, 1, 4];
    assert_eq!(
        apply(ColorChange::Brightness(1.5), &[0, 100, 170, 200], row),
        [0, 150, 255, 255]
    );
    assert_eq!(
        apply(ColorChange::Contrast(0.0), &[0, 100, 100, 200], row),
        [100; 4]
    );
    assert_eq!(
        apply(ColorChange::Posterize(1), &[0, 127, 128, 255], row),
        [0, 0, 128, 128]
    );
    assert_eq!(
        apply(ColorChange::Solarize(128), &[0, 127, 128, 255], row),
        [0, 127, 127, 0]
    );
    assert_eq!(
        apply(ColorChange::AutoContrast, &[50, 100, 75, 50], row),
        [0, 255, 128, 0]
    );
    // `ImageOps.equalize` leaves so few pixels as they are.
    assert_eq!(
        apply(ColorChange::Equalize, &[50, 100, 75, 50], row),
        [50, 100, 75, 50]
    );
    let many: Vec<u8> = (0..1024)
        .map(|at| if at % 2 == 0 { 10 } else { 20 })
        .collect();
    let equal = apply(ColorChange::Equalize, &many, [1, 32, 32]);
    assert_eq!(equal[..2], [0, 255]);
    // Red, green and blue of a pixel: the grey of 0.299, 0.587 and 0.114.
    assert_eq!(
        apply(ColorChange::Saturation(0.0), &[100, 0, 0], [3, 1, 1]),
        [30; 3]
    );
    assert_eq!(
        apply(ColorChange::Saturation(0.0), &[100], [1, 1, 1]),
        [100]
    );
    let spot = [0, 0, 0, 0, 130, 0, 0, 0, 0];
    assert_eq!(apply(ColorChange::Sharpness(0.0), &spot, [1, 3, 3])[4], 50);
    let erase = ColorChange::Erase {
        rows: 0..1,
        columns: 1..2,
    };
    assert_eq!(apply(erase, &[10, 90, 20, 40], [1, 2, 2]), [10, 40, 20, 40]);
}

#[test]
fn a_text_is_what_it_says_or_refused() {
    let text = "crop:0.35,flip,color:0.4,rotate:15,shift:0.1,erase:0.25,rand:2:9";
    let parsed: ImageAugmentation = text.parse().unwrap();
    assert_eq!(parsed.to_string(), text);
    assert_eq!(
        "crop, flip,color,rotate,shift,erase,rand".parse(),
        Ok(parsed)
    );
    assert!("".parse::<ImageAugmentation>().unwrap().is_none());
    let wrong = "crop:0 crop:2 flip:1 color:-1 rotate:200 rand:2 rand:2.5:9 rand:2:31 erase:nan \
                 shift:1:2 flip,,crop Flip";
    for text in wrong.split(' ') {
        assert!(text.parse::<ImageAugmentation>().is_err(), "{text}");
    }
}

#[test]
fn a_grey_image_keeps_its_label() {
    let item = ImageItem {
        pixels: [9; 784],
        label: 4,
    };
    let shift: ImageAugmentation = "shift:0.5,color".parse().unwrap();
    let moved = shift.grey(item.clone(), &mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(moved.label, 4);
    assert_ne!(moved.pixels, item.pixels);
}
