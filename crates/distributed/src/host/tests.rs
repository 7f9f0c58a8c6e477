//! Tests of `host`.

use super::*;

#[test]
fn gradients_are_written_added_and_scaled_in_every_type() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let mut buffer = HostBuffer::zeroed(dtype, 3).unwrap();
        let data = TensorData::from([1.0f32, -2.0]).convert_dtype(dtype);
        buffer.put(1..3, &data, 0.5, Put::Replace).unwrap();
        buffer.put(1..3, &data, 2.0, Put::Add).unwrap();
        buffer.scale(1..3, 2.0);
        let values = buffer
            .tensor_data(0..3, &[3], 1.0, None)
            .iter::<f64>()
            .collect::<Vec<_>>();
        assert_eq!(values, [0.0, 5.0, -10.0]);
        assert_eq!(buffer.sum_of_squares(1..3), 125.0);
        buffer.clear(2..3);
        assert_eq!(buffer.sum_of_squares(0..3), 25.0);
        assert!(buffer.flag(1) && !buffer.flag(2));
        buffer.set_flag(2, true);
        let halved = buffer.tensor_data(1..3, &[2], 0.5, None);
        assert_eq!(halved.iter::<f64>().collect::<Vec<_>>(), [2.5, 0.5]);
        let spent = TensorData::from([7.0f32, 7.0]).convert_dtype(dtype);
        let reused = buffer.tensor_data(1..3, &[2], 0.5, Some(spent));
        assert_eq!(reused, halved);
        let short = TensorData::from([7.0f32]).convert_dtype(dtype);
        let fresh = buffer.tensor_data(1..3, &[2], 0.5, Some(short));
        assert_eq!(fresh, halved);
        let wrong = TensorData::from([1i32, 2]);
        assert!(buffer.put(1..3, &wrong, 1.0, Put::Replace).is_err());
        assert!(buffer.put(0..3, &data, 1.0, Put::Replace).is_err());
    }
    assert!(HostBuffer::zeroed(DType::I32, 1).is_none());
}
