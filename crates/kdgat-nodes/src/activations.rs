//! Activations of all nodes at one layer: in memory, or in a temporary file where they do not fit.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use kdgat_torch::{mapped, view};
use memmap2::Mmap;
use tch::{Device, Kind, TchError, Tensor};

use super::NodesError;

/// Rows of activations, `[num_rows, columns]`, f32, that are still being written.
///
/// A file has no name, so the system removes it when the program ends, however it ends.
#[derive(Debug)]
pub struct Activations {
    shape: Shape,
    rows: Writing,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    num_rows: usize,
    columns: usize,
}

#[derive(Debug)]
enum Writing {
    Memory(Vec<f32>),
    File { file: File, folder: PathBuf },
}

impl Activations {
    /// Rows of zeros: in memory if they take at most `limit` bytes, otherwise in a temporary file in `folder`.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn new(num_rows: usize, columns: usize, limit: u64, folder: &Path) -> Result<Self, NodesError> {
        let shape = Shape { num_rows, columns };
        let rows = if shape.bytes() <= limit {
            Writing::Memory(vec![0.0; num_rows * columns])
        } else {
            let file =
                tempfile::tempfile_in(folder).map_err(NodesError::io("create a file of activations in", folder))?;
            file.set_len(shape.bytes()).map_err(NodesError::io("write activations to a file in", folder))?;
            Writing::File { file, folder: folder.to_path_buf() }
        };
        Ok(Self { shape, rows })
    }

    /// True if the rows are in a file.
    pub fn is_in_file(&self) -> bool {
        matches!(self.rows, Writing::File { .. })
    }

    /// Writes rows from `first` on: `values` is `[rows, columns]`, f32, on any device; the host waits for it.
    ///
    /// # Errors
    /// Another number of columns, rows past the last one, a full disk, or those of libtorch.
    pub fn write(&mut self, first: usize, values: &Tensor) -> Result<(), NodesError> {
        let count = match values.size()[..] {
            [count, columns] if columns == self.shape.columns as i64 => count as usize,
            _ => return Err(self.shape.refused(values)),
        };
        if first.checked_add(count).is_none_or(|end| end > self.shape.num_rows) {
            return Err(self.shape.refused(values));
        }
        let values = values.f_to_device(Device::Cpu)?.f_contiguous()?;
        let values = view::read::<f32>("activations", &values)?;
        let at = first * self.shape.columns;
        match &mut self.rows {
            Writing::Memory(rows) => rows[at..at + values.len()].copy_from_slice(values),
            Writing::File { file, folder } => file
                .write_all_at(bytemuck::cast_slice(values), (at * size_of::<f32>()) as u64)
                .map_err(NodesError::io("write activations to a file in", folder))?,
        }
        Ok(())
    }

    /// Ends writing; the rows can be read then.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn finish(self) -> Result<ActivationRows, NodesError> {
        let rows = match self.rows {
            Writing::Memory(rows) => Reading::Memory(rows),
            // An empty file cannot be mapped.
            Writing::File { .. } if self.shape.bytes() == 0 => Reading::Memory(Vec::new()),
            Writing::File { file, folder } => {
                Reading::File(mapped::map(&file).map_err(NodesError::io("map a file of activations in", &folder))?)
            }
        };
        Ok(ActivationRows { shape: self.shape, rows })
    }
}

impl Shape {
    fn bytes(self) -> u64 {
        (self.num_rows * self.columns * size_of::<f32>()) as u64
    }

    fn refused(self, values: &Tensor) -> NodesError {
        let Self { num_rows, columns } = self;
        TchError::Shape(format!(
            "activations of shape {:?} do not fit {num_rows} rows of {columns} columns",
            values.size()
        ))
        .into()
    }
}

/// Rows of activations, `[num_rows, columns]`, f32, complete.
#[derive(Debug)]
pub struct ActivationRows {
    shape: Shape,
    rows: Reading,
}

#[derive(Debug)]
enum Reading {
    Memory(Vec<f32>),
    File(Mmap),
}

impl ActivationRows {
    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.shape.num_rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// Rows in memory: `values` is `[num_rows, columns]`.
    pub fn in_memory(values: Vec<f32>, columns: usize) -> Self {
        let num_rows = values.len() / columns.max(1);
        Self { shape: Shape { num_rows, columns }, rows: Reading::Memory(values) }
    }

    /// All values, row by row.
    pub fn values(&self) -> &[f32] {
        match &self.rows {
            Reading::Memory(rows) => rows,
            // A map begins on a page, and has whole rows.
            Reading::File(map) => bytemuck::cast_slice(map),
        }
    }

    /// A copy of these rows, `[nodes, columns]`, f32.
    ///
    /// # Errors
    /// Those of libtorch, out of memory included.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn gather(&self, nodes: &[u32]) -> Result<Tensor, TchError> {
        let (columns, values) = (self.shape.columns, self.values());
        let mut rows = Tensor::f_empty([nodes.len() as i64, columns as i64], (Kind::Float, Device::Cpu))?;
        let to = view::write::<f32>("activations", &mut rows)?.chunks_exact_mut(columns.max(1));
        for (&node, row) in nodes.iter().zip(to) {
            row.copy_from_slice(&values[node as usize * columns..][..columns]);
        }
        Ok(rows)
    }

    /// A copy of consecutive rows, `[range, columns]`, f32.
    ///
    /// # Errors
    /// Those of libtorch, out of memory included.
    ///
    /// # Panics
    /// If the range leaves the rows.
    pub fn rows(&self, range: Range<usize>) -> Result<Tensor, TchError> {
        let columns = self.shape.columns;
        let values = &self.values()[range.start * columns..range.end * columns];
        Tensor::f_from_slice(values)?.f_reshape([range.len() as i64, columns as i64])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(tensor: &Tensor) -> Vec<u32> {
        Vec::<f32>::try_from(&tensor.reshape([-1])).unwrap().into_iter().map(f32::to_bits).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_file_holds_the_same_bits_as_memory(
            num_rows in 0usize..50,
            columns in 0usize..20,
            block in 1usize..20,
            nodes in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let size = (num_rows * columns * 4) as u64;
            let values: Vec<f32> = (0..num_rows * columns).map(|value| (value as f32).sin() / 3.0).collect();
            let [memory, file] = [size, size.wrapping_sub(1)].map(|limit| {
                let mut activations = Activations::new(num_rows, columns, limit, folder.path()).unwrap();
                assert_eq!(activations.is_in_file(), limit < size);
                // From the last block to the first.
                for first in (0..num_rows).step_by(block).rev() {
                    let end = (first + block).min(num_rows);
                    let rows = Tensor::from_slice(&values[first * columns..end * columns]);
                    activations.write(first, &rows.reshape([(end - first) as i64, columns as i64])).unwrap();
                }
                activations.finish().unwrap()
            });
            prop_assert_eq!(bits(&memory.rows(0..num_rows).unwrap()), bits(&Tensor::from_slice(&values)));
            prop_assert_eq!(bits(&memory.rows(0..num_rows).unwrap()), bits(&file.rows(0..num_rows).unwrap()));
            let nodes: Vec<u32> = match num_rows {
                0 => Vec::new(),
                _ => nodes.iter().map(|node| node.index(num_rows) as u32).collect(),
            };
            let (of_memory, of_file) = (memory.gather(&nodes).unwrap(), file.gather(&nodes).unwrap());
            prop_assert_eq!(of_memory.size(), [nodes.len() as i64, columns as i64]);
            prop_assert_eq!(bits(&of_memory), bits(&of_file));
            let expected: Vec<f32> =
                nodes.iter().flat_map(|&node| values[node as usize * columns..][..columns].to_vec()).collect();
            prop_assert_eq!(bits(&of_memory), bits(&Tensor::from_slice(&expected)));
            // Nothing is left in the folder, even while the file is mapped.
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn rows_that_do_not_fit_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut activations = Activations::new(5, 3, 0, folder.path()).unwrap();
        let rows = |count, columns| Tensor::zeros([count, columns], (Kind::Float, Device::Cpu));
        for (first, values) in
            [(0, rows(2, 4)), (4, rows(2, 3)), (usize::MAX, rows(2, 3)), (0, rows(1, 3).reshape([3]))]
        {
            let error = activations.write(first, &values).unwrap_err().to_string();
            assert!(error.contains("do not fit 5 rows of 3 columns"), "{error}");
        }
        activations.write(4, &rows(1, 3)).unwrap();
        let error = Activations::new(5, 3, 0, &folder.path().join("missing")).unwrap_err().to_string();
        assert!(error.contains("cannot create a file of activations in") && error.contains("missing"), "{error}");
    }
}
