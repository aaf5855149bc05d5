//! Sums over segments of rows, in an order that is the same in every call.

use kdgat_torch::autocast::widened;
use tch::{Device, TchError, Tensor};

/// The sum of each segment of rows: `[rows, ...]` → `[segments, ...]`. Segment `s` has the rows
/// `pointers[s]..pointers[s + 1]`; `segment_of_row`, i64, is the inverse.
///
/// On a GPU, `index_add` adds in an order that depends on its threads: a teacher's outputs would differ between two
/// forward passes and could not be cached. There, one thread sums each segment; on a CPU, `index_add` goes row by row
/// anyway.
///
/// Half precision is summed in f32 and rounded once: in bf16 the sum of 300 ones would be 256.
pub fn sums(x: &Tensor, pointers: &Tensor, segment_of_row: &Tensor) -> Result<Tensor, TchError> {
    rounded_once(x, |x| match x.device() {
        Device::Cpu => by_rows(x, pointers, segment_of_row),
        _ => by_segments(x, pointers),
    })
}

/// Applies `sums` to values of at least single precision, and rounds to the kind of `x`.
fn rounded_once(x: &Tensor, sums: impl FnOnce(&Tensor) -> Result<Tensor, TchError>) -> Result<Tensor, TchError> {
    sums(&widened(x)?)?.f_to_kind(x.f_kind()?)
}

fn by_rows(x: &Tensor, pointers: &Tensor, segment_of_row: &Tensor) -> Result<Tensor, TchError> {
    let mut shape = x.size();
    shape[0] = (pointers.numel() as i64 - 1).max(0);
    Tensor::f_zeros(&shape, (x.f_kind()?, x.device()))?.f_index_add(0, segment_of_row, x)
}

fn by_segments(x: &Tensor, pointers: &Tensor) -> Result<Tensor, TchError> {
    // The pointers are valid by construction; validating them would synchronise with the device.
    let (axis, unchecked, of_no_rows) = (0, true, 0.0);
    Tensor::f_segment_reduce(x, "sum", None, None, Some(pointers), axis, unchecked, of_no_rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn half_precision_is_summed_in_single_precision() {
        for (kind, rows) in [(Kind::BFloat16, 300_i32), (Kind::Half, 3000)] {
            let pointers = Tensor::from_slice(&[0, rows]);
            let of_row = Tensor::zeros([rows.into()], (Kind::Int64, Device::Cpu));
            let ones = Tensor::ones([rows.into(), 2], (kind, Device::Cpu));
            let by_rows = rounded_once(&ones, |ones| by_rows(ones, &pointers, &of_row)).unwrap();
            let by_segments = rounded_once(&ones, |ones| by_segments(ones, &pointers)).unwrap();
            let sums = sums(&ones, &pointers, &of_row).unwrap();
            for found in [by_rows, by_segments, sums] {
                assert_eq!((found.kind(), found.double_value(&[0, 1])), (kind, f64::from(rows)));
            }
        }
    }

    /// Both implementations run on a CPU, so the GPU's is compared with the CPU's here.
    #[test]
    fn both_ways_give_the_same_sums_and_gradients() {
        let pointers = [0_i32, 3, 3, 4, 9];
        let of_row: Vec<i64> = pointers
            .windows(2)
            .enumerate()
            .flat_map(|(segment, ends)| (ends[0]..ends[1]).map(move |_| segment as i64))
            .collect();
        for shape in [vec![9], vec![9, 5], vec![9, 4, 3]] {
            for wide in [false, true] {
                let kind = if wide { Kind::Int64 } else { Kind::Int };
                let pointers = Tensor::from_slice(&pointers).to_kind(kind);
                let values = Tensor::randn(&shape, (Kind::Double, Device::Cpu));
                let weights = Tensor::randn([&[4], &shape[1..]].concat(), (Kind::Double, Device::Cpu));
                let [(left, left_gradient), (right, right_gradient)] = [true, false].map(|by_segment| {
                    let x = values.copy().set_requires_grad(true);
                    let sums = match by_segment {
                        true => by_segments(&x, &pointers).unwrap(),
                        false => by_rows(&x, &pointers, &Tensor::from_slice(&of_row)).unwrap(),
                    };
                    (&sums * &weights).sum(Kind::Double).backward();
                    (sums.detach(), x.grad())
                });
                assert!(left.allclose(&right, 1e-12, 1e-12, false), "{shape:?}: {left} {right}");
                assert!(left_gradient.equal(&right_gradient), "{shape:?}: gradients");
                assert_eq!(left.get(1).abs().max().double_value(&[]), 0.0, "a segment without rows");
            }
        }
    }
}
