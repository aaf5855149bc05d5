//! The kernels of `gather.cu`, compiled at first use.

use std::sync::Arc;

use kdgat_base::random;
use kdgat_torch::cuda_program::{Argument, Program, ProgramError, Programs, Source};
use tch::{Device, Kind, TchError, Tensor};

use super::super::Vocabulary;
use super::super::assemble::ID_BITS;

/// Kernels that gather graphs and rows on a device.
#[derive(Debug)]
pub struct Gatherer(Arc<Program>);

impl Gatherer {
    /// The kernels for a device. On the CPU they are emulated, for tests.
    ///
    /// # Errors
    /// A machine without CUDA's run-time compiler.
    pub fn of(device: Device) -> Result<Self, ProgramError> {
        static COMPILED: Programs<Device> = Programs::new();
        Ok(Self(COMPILED.get(device, || Program::compile(&source(), device))?))
    }

    /// Queues a kernel of `gather.cu`.
    pub(super) fn launch(&self, kernel: &str, threads: i64, arguments: &[Argument<'_>]) -> Result<(), TchError> {
        Ok(self.0.launch(kernel, threads as u64, arguments)?)
    }

    /// Rows of graphs, or of their nodes, out of the rows of many graphs: `[rows, columns]`, f32.
    ///
    /// `column` is `[all rows, columns]`, f32 or f16. `table` is `[3, graphs + 1]`, i64: for each graph its first row among `rows`, the
    /// distance from there to its first row of `column` (with the end of the rows, both for nodes), and its own row of `column` (for graphs).
    ///
    /// # Errors
    /// Want of memory.
    pub fn rows(&self, table: &Tensor, column: &Tensor, rows: i64, of_nodes: bool) -> Result<Tensor, TchError> {
        let (columns, graphs) = (column.size()[1], table.size()[1] - 1);
        let gathered = Tensor::f_empty([rows, columns], (Kind::Float, column.device()))?;
        let [floats, halves] = match column.f_kind()? {
            Kind::Half => [Argument::Absent, Argument::Array(column)],
            _ => [Argument::Array(column), Argument::Absent],
        };
        let arguments = [
            Argument::Int(graphs as i32),
            Argument::UnsignedLong(rows as u64),
            Argument::Int(columns as i32),
            Argument::Int(i32::from(of_nodes)),
            Argument::Array(table),
            floats,
            halves,
            Argument::Array(&gathered),
        ];
        self.launch("gather_rows", rows * columns, &arguments)?;
        Ok(gathered)
    }
}

fn source() -> Source {
    let bits = |value: u64| format!("{value}ull");
    Source {
        name: "gathering of graphs",
        text: include_str!("gather.cu"),
        kernels: &[
            ("assemble_nodes", 19),
            ("assemble_edges", 13),
            ("assemble_pairs", 7),
            ("assemble_graphs", 13),
            ("gather_rows", 8),
        ],
        definitions: vec![
            ("GOLDEN", bits(random::GOLDEN)),
            ("FIRST_MULTIPLIER", bits(random::MULTIPLIERS[0])),
            ("SECOND_MULTIPLIER", bits(random::MULTIPLIERS[1])),
            ("UNKNOWN", Vocabulary::UNKNOWN.to_string()),
            ("ID_BITS", ID_BITS.to_string()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use kdgat_torch::cuda_program;

    use super::*;

    #[test]
    fn rows_are_those_of_torch() {
        let gatherer = Gatherer::of(Device::Cpu).unwrap();
        // Every half-precision number but those that are not finite, and the infinities.
        let bits: Vec<i16> = (i16::MIN..=i16::MAX).collect();
        let halves = Tensor::from_slice(&bits).view_dtype(Kind::Half).reshape([-1, 4]);
        let table = |firsts: &[i64], shifts: &[i64], own: &[i64]| {
            Tensor::from_slice(&[firsts, shifts, own].concat()).view([3, -1])
        };
        let all = halves.size()[0];
        let found = gatherer.rows(&table(&[0, all], &[0, 0], &[0, 0]), &halves, all, true).unwrap();
        let expected = halves.to_kind(Kind::Float);
        let same = found.eq_tensor(&expected).logical_or(&found.isnan().logical_and(&expected.isnan()));
        assert!(bool::try_from(same.all()).unwrap());
        let column = Tensor::arange(24, (Kind::Float, Device::Cpu)).reshape([12, 2]);
        // Graphs of three, no and two nodes, whose rows begin at 7, 0 and 2.
        let places = table(&[0, 3, 3, 5], &[7, 0, -1, 0], &[4, 11, 0, 0]);
        let nodes = gatherer.rows(&places, &column, 5, true).unwrap();
        assert_eq!(nodes, column.index_select(0, &Tensor::from_slice(&[7_i64, 8, 9, 2, 3])));
        let graphs = gatherer.rows(&places, &column, 3, false).unwrap();
        assert_eq!(graphs, column.index_select(0, &Tensor::from_slice(&[4_i64, 11, 0])));
    }

    #[test]
    fn nvrtc_compiles_the_kernels_for_old_and_new_gpus() {
        if let Err(ProgramError::CompilerMissing) = cuda_program::compiler_version() {
            return println!("skipped: compiling for a GPU needs NVRTC (scripts/test --all installs it)");
        }
        let architectures = cuda_program::architectures().unwrap();
        for architecture in [architectures[0], 90, architectures[architectures.len() - 1]] {
            cuda_program::compile_for(&source(), architecture).unwrap();
        }
    }
}
