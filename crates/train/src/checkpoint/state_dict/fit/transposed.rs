//! Matrices whose rows are columns in a file.

use burn::store::burn_pack::Tensor as PackedTensor;

/// Whether a tensor of the model is a matrix, and the file has it transposed. A square one does not show it.
pub(super) fn is_transposed(own: &PackedTensor, their: &PackedTensor) -> bool {
    match &*own.shape {
        [rows, columns] => rows != columns && *their.shape == [*columns, *rows],
        _ => false,
    }
}

/// What is said of a file in which as many matrices are transposed, and all else fits.
pub(super) fn diagnosis(count: usize) -> String {
    let which = match count {
        1 => "1 tensor is".to_owned(),
        many => format!("{many} tensors are"),
    };
    format!(
        "\n  {which} transposed in the file, and all others fit: save v.t() in place of v (of square ones, the shape does \
         not show it)"
    )
}
