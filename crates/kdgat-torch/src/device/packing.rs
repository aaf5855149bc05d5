//! Tensors packed into one allocation.

use tch::{Kind, TchError, Tensor};

/// Alignment of each tensor, the same as the CUDA allocator's.
const ALIGNMENT_BYTES: usize = 256;

/// The places of tensors in an allocation.
#[derive(Debug, Default)]
pub struct Packing {
    places: Vec<Place>,
    bytes: usize,
}

#[derive(Debug)]
struct Place {
    offset_bytes: usize,
    shape: Vec<i64>,
    kind: Kind,
}

impl Place {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.kind.elt_size_in_bytes()
    }
}

impl Packing {
    /// Adds a place behind the others.
    pub fn add(&mut self, shape: &[i64], kind: Kind) {
        let place = Place { offset_bytes: self.bytes, shape: shape.to_vec(), kind };
        self.bytes += place.bytes().next_multiple_of(ALIGNMENT_BYTES);
        self.places.push(place);
    }

    /// Bytes of the allocation.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Beginnings of the places, in bytes.
    pub fn offsets_bytes(&self) -> impl Iterator<Item = usize> {
        self.places.iter().map(|place| place.offset_bytes)
    }

    /// The tensors in `memory`, `[bytes]`, u8, in the order in which they were added.
    ///
    /// # Errors
    /// Memory that is too small.
    pub fn tensors(&self, memory: &Tensor) -> Result<Vec<Tensor>, TchError> {
        self.places
            .iter()
            .map(|place| view(memory, place.offset_bytes, place.bytes(), &place.shape, place.kind))
            .collect()
    }
}

fn view(memory: &Tensor, offset: usize, bytes: usize, shape: &[i64], kind: Kind) -> Result<Tensor, TchError> {
    memory.f_narrow(0, offset as i64, bytes as i64)?.f_view_dtype(kind)?.f_view(shape)
}

/// Beginning of a packed tensor in its allocation, in bytes; 0 for one without elements.
pub fn offset_bytes(tensor: &Tensor, memory: &Tensor) -> usize {
    match tensor.numel() {
        0 => 0,
        _ => (tensor.data_ptr() as usize).wrapping_sub(memory.data_ptr() as usize),
    }
}

/// The tensor at the same place of another allocation of the same size.
///
/// # Errors
/// A tensor that is not packed into `memory`.
pub fn moved(tensor: &Tensor, memory: &Tensor, to: &Tensor) -> Result<Tensor, TchError> {
    let kind = tensor.f_kind()?;
    let bytes = tensor.numel() * kind.elt_size_in_bytes();
    view(to, offset_bytes(tensor, memory), bytes, &tensor.size(), kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn packed_tensors_move_with_their_allocation() {
        let mut packing = Packing::default();
        for (shape, kind) in [(&[3, 2][..], Kind::Float), (&[0], Kind::Int64), (&[], Kind::Double), (&[5], Kind::Int)] {
            packing.add(shape, kind);
        }
        let memory = Tensor::zeros([packing.bytes() as i64], (Kind::Uint8, Device::Cpu));
        let mut tensors = packing.tensors(&memory).unwrap();
        for (number, tensor) in tensors.iter_mut().enumerate() {
            let _ = tensor.fill_(number as i64 + 1);
        }
        let copy = memory.copy();
        let _ = memory.zero();
        for (tensor, offset) in tensors.iter().zip(packing.offsets_bytes()) {
            assert!(tensor.numel() == 0 || offset_bytes(tensor, &memory) == offset);
            let found = moved(tensor, &memory, &copy).unwrap();
            assert_eq!((found.size(), found.kind()), (tensor.size(), tensor.kind()));
        }
        let sums: Vec<f64> = tensors
            .iter()
            .map(|tensor| moved(tensor, &memory, &copy).unwrap().sum(Kind::Double).double_value(&[]))
            .collect();
        assert_eq!(sums, [6.0, 0.0, 3.0, 20.0]);
        assert!(packing.tensors(&memory.narrow(0, 0, 256)).is_err(), "the memory is too small");
    }
}
