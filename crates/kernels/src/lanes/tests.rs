use super::{DROPPED, Gather, Scatter};
use crate::isa::InstructionSet;

#[test]
fn images_survive_the_way_into_lanes_and_out() {
    for set in InstructionSet::available() {
        let lanes = set.lanes();
        for pixels in [1, 3, 16, 37] {
            for images in 1..=lanes {
                let stride = pixels + 5;
                let source: Vec<f32> = (0..images * stride).map(|i| i as f32).collect();
                let mut places: Vec<u32> = (0..pixels as u32).map(|p| p + 2).collect();
                places[0] = DROPPED;
                let mut block = vec![f32::NAN; (pixels + 3) * lanes];
                set.run(Gather {
                    source: &source,
                    images,
                    image_stride: stride,
                    places: &places,
                    target: &mut block,
                });
                let mut result = vec![-1.0; images * (pixels + 4)];
                let mut rows: Vec<&mut [f32]> = result.chunks_mut(pixels + 4).collect();
                set.run(Scatter {
                    source: &block,
                    images: &mut rows,
                    first: 1,
                });
                for (image, row) in rows.iter().enumerate() {
                    for (at, &value) in row.iter().enumerate() {
                        let expected = match at {
                            0 => -1.0,
                            _ if (4..pixels + 3).contains(&at) => source[image * stride + at - 3],
                            _ => 0.0,
                        };
                        assert_eq!(value, expected, "{set:?} {pixels} {images} {at}");
                    }
                }
            }
        }
    }
}
