//! Tensors that all processes exchange: through shared memory if they are on one machine, otherwise with Gloo.

use std::ops::Range;
use std::sync::atomic::Ordering;

use kdgat_torch::shared_slots::{Content, SharedSlots};
use kdgat_torch::view;
use parking_lot::Mutex;
use tch::{Device, Kind, TchError, Tensor};

use super::error::ProcessError;
use super::{IS_CLAIMED, Processes, ended_text};

/// Values that a process gives the others at a time over Gloo.
const PACKET_VALUES: usize = 1 << 20;

/// Shares of flat tensors: process `r` has elements `r * stride` up to the next one's, the last processes fewer or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stride(pub usize);

impl Stride {
    /// The elements of process `rank` in a tensor of `total`.
    pub fn range(self, rank: usize, total: usize) -> Range<usize> {
        (rank * self.0).min(total)..((rank + 1) * self.0).min(total)
    }
}

impl Processes {
    /// Replaces a tensor by its sum over all processes.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn sum(&self, tensor: &mut Tensor) -> Result<(), ProcessError> {
        self.on_host(tensor, |tensor| match self.sum_in_memory(tensor)? {
            true => Ok(()),
            false => self.group.sum(tensor).map_err(|error| self.lost(&error)),
        })
    }

    /// Adds up a tensor of f32 on the host through shared memory. Returns false if there is none.
    fn sum_in_memory(&self, tensor: &mut Tensor) -> Result<bool, ProcessError> {
        let Some(slots) = self.slots.as_ref().filter(|_| tensor.kind() == Kind::Float) else { return Ok(false) };
        let values = view::write::<f32>("a tensor to sum", tensor)?;
        let length = slots.lock().capacity() / size_of::<f32>();
        for values in values.chunks_mut(length) {
            let own = values.to_vec();
            values.fill(0.0);
            self.give_in_memory(slots, (Content::Sums, &own), &mut |_, others| {
                values.iter_mut().zip(others).for_each(|(sum, value)| *sum += value);
            })?;
        }
        Ok(true)
    }

    /// Replaces a tensor by that of process 0.
    ///
    /// # Errors
    /// A process that ended or failed.
    pub fn take_from_first(&self, tensor: &mut Tensor) -> Result<(), ProcessError> {
        self.on_host(tensor, |tensor| self.group.broadcast(tensor, 0).map_err(|error| self.lost(&error)))
    }

    /// Fills a flat tensor of f32, of which each process has its share, with the shares of all (all-gather).
    ///
    /// # Errors
    /// A process that ended or failed, or a tensor of another type.
    pub fn gather_shares(&self, tensor: &mut Tensor, stride: Stride) -> Result<(), ProcessError> {
        self.on_host(tensor, |tensor| {
            let values = view::write::<f32>("a tensor to gather", tensor)?;
            let total = values.len();
            for offsets in self.packets(stride) {
                let own = packet(&values[stride.range(self.rank(), total)], &offsets);
                self.give(&own, &mut |rank, others| {
                    let range = stride.range(rank, total);
                    put(&mut values[range], &offsets, others);
                })?;
            }
            Ok(())
        })
    }

    /// Collects the shares of a flat tensor of f32 in process 0: `own` is this process's share on the host, and process 0 alone gives the
    /// `whole` tensor to fill.
    ///
    /// # Errors
    /// A process that ended or failed, or a tensor of another type or device.
    pub fn collect_shares(&self, own: &Tensor, whole: Option<&mut Tensor>, stride: Stride) -> Result<(), ProcessError> {
        let own = view::read::<f32>("a share to collect", own)?;
        let mut whole = whole.map(|whole| view::write::<f32>("a tensor to collect", whole)).transpose()?;
        for offsets in self.packets(stride) {
            self.give(&packet(own, &offsets), &mut |rank, others| {
                if let Some(whole) = &mut whole {
                    let range = stride.range(rank, whole.len());
                    put(&mut whole[range], &offsets, others);
                }
            })?;
        }
        Ok(())
    }

    /// The offsets in a share that are exchanged together.
    fn packets(&self, stride: Stride) -> impl Iterator<Item = Range<usize>> + use<> {
        let length = match &self.slots {
            Some(slots) => slots.lock().capacity() / size_of::<f32>(),
            None => PACKET_VALUES,
        };
        (0..stride.0).step_by(length).map(move |start| start..(start + length).min(stride.0))
    }

    /// Gives `own` to all processes, which give as many values, and passes those of each to `take`, with its rank.
    fn give(&self, own: &[f32], take: &mut dyn FnMut(usize, &[f32])) -> Result<(), ProcessError> {
        if let Some(slots) = &self.slots {
            return self.give_in_memory(slots, (Content::Shares, own), take);
        }
        let gathered = self.group.gather(&Tensor::f_from_slice(own)?).map_err(|error| self.lost(&error))?;
        let rows = view::read::<f32>("gathered values", &gathered)?.chunks_exact(own.len().max(1));
        rows.enumerate().for_each(|(rank, values)| take(rank, values));
        Ok(())
    }

    fn give_in_memory(
        &self,
        slots: &Mutex<SharedSlots>,
        (content, own): (Content, &[f32]),
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ProcessError> {
        let (mut rank, mut misaligned) = (0, false);
        let mut visit = |bytes: &[u8]| {
            match view::of_bytes(bytes) {
                Some(values) => take(rank, values),
                None => misaligned = true,
            }
            rank += 1;
        };
        let is_lost = |_| IS_CLAIMED.load(Ordering::SeqCst);
        let ended = slots.lock().exchange((content, view::bytes_of(own)), &is_lost, &mut visit);
        ended.map_err(|ended| self.lost(&ended_text(ended)))?;
        match misaligned {
            true => Err(TchError::Torch("a packet in shared memory is not aligned to f32".to_owned()).into()),
            false => Ok(()),
        }
    }

    /// Calls `work` with the tensor, or with a copy of it on the host.
    fn on_host(
        &self,
        tensor: &mut Tensor,
        work: impl FnOnce(&mut Tensor) -> Result<(), ProcessError>,
    ) -> Result<(), ProcessError> {
        if !tensor.device().is_cuda() {
            return work(tensor);
        }
        let mut host = tensor.f_to_device(Device::Cpu)?;
        work(&mut host)?;
        tch::no_grad(|| tensor.f_copy_(&host))?;
        Ok(())
    }
}

/// The values of a share at these offsets, padded with zeros.
fn packet(share: &[f32], offsets: &Range<usize>) -> Vec<f32> {
    let end = offsets.end.min(share.len());
    let mut values = share[offsets.start.min(end)..end].to_vec();
    values.resize(offsets.len(), 0.0);
    values
}

/// Puts a packet at these offsets of a share, without its padding.
fn put(share: &mut [f32], offsets: &Range<usize>, packet: &[f32]) {
    let end = offsets.end.min(share.len());
    let start = offsets.start.min(end);
    share[start..end].copy_from_slice(&packet[..end - start]);
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Duration;

    use kdgat_nn::attention::Backend;
    use kdgat_nn::parameters::{NamedTensor, Role};
    use tch::kind::FLOAT_CPU;

    use super::super::{Meeting, Place};
    use super::*;
    use crate::optimizer::{Adam, AdamOptions, Share};
    use crate::trainable::Trainable;

    /// Runs `work` as each of `size` processes, on a thread each. Each is on a machine of its own unless they share memory.
    pub fn together<T: Send>(size: usize, shares_memory: bool, work: impl Fn(&Processes) -> T + Sync) -> Vec<T> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let join = |rank| {
            let (local_rank, local_size) = if shares_memory { (rank, size) } else { (0, 1) };
            let host = "127.0.0.1".to_owned();
            let (is_hosted, restarts, own_threads) = (false, 0, None);
            let place = Place { rank, size, local_rank, local_size, host, port, is_hosted, restarts, own_threads };
            let processes: Arc<Processes> =
                Processes::join(place, &Meeting { run: "test", timeout: Duration::from_secs(60) }).unwrap();
            assert_eq!(processes.shares_memory(), shares_memory);
            let result = work(&processes);
            processes.finish().unwrap();
            result
        };
        std::thread::scope(|scope| {
            let join = &join;
            let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn trainable(length: i64) -> Trainable {
        let tensor = (Tensor::arange(length, FLOAT_CPU) * 0.37).sin().set_requires_grad(true);
        let named = NamedTensor { name: "weight".to_owned(), tensor, role: Role::Parameter };
        Trainable::new(vec![named], Device::Cpu).unwrap()
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        view::read::<f32>("values", tensor).unwrap().iter().map(|value| value.to_bits()).collect()
    }

    /// Parameters, their average, and the optimiser's state after four steps, of several processes in process 0.
    fn trained(
        length: i64,
        kernel: Backend,
        offload: bool,
        processes: Option<&Processes>,
    ) -> (Vec<u32>, Vec<u32>, Vec<Vec<u32>>) {
        let mut trainable = trainable(length);
        let share = processes.map_or(Share::WHOLE, |processes| Share::of(processes).of_any_size());
        let options = AdamOptions { weight_decay: 1e-3, gradient_clip: 0.5, offload, kernel, share, ema_decay: 0.9 };
        let mut adam = Adam::new(&trainable, options).unwrap();
        for step in 0..4 {
            trainable.gradients.copy_(&(Tensor::arange(length, FLOAT_CPU) * (0.11 + f64::from(step))).cos());
            let _norm = adam.step(&mut trainable, 1e-2).unwrap();
            assert_eq!(trainable.gradients.count_nonzero(None::<i64>).int64_value(&[]), 0);
            if let Some(processes) = processes {
                adam.gather(&mut trainable, processes).unwrap();
            }
        }
        assert_eq!(adam.bytes(), options.state_bytes(length as usize));
        let state = match processes {
            Some(processes) => adam.collect(processes).unwrap(),
            None => Some(adam.state().unwrap()),
        };
        if let (Some(state), Some(processes)) = (&state, processes) {
            // A resumed process takes its share.
            let find = |name: &str| Ok(state.iter().find(|(found, _)| *found == name).unwrap().1.shallow_clone());
            let before = bits(&adam.state().unwrap()[1].1);
            adam.load(find).unwrap();
            assert_eq!(bits(&adam.state().unwrap()[1].1), before, "{}", processes.rank());
            assert!(adam.load(|_| Ok(Tensor::zeros([length + 1], FLOAT_CPU))).is_err());
        }
        let moments = state.map(|state| state[..3].iter().map(|(_, tensor)| bits(tensor)).collect());
        let values = bits(&trainable.values);
        adam.exchange_average(&mut trainable, processes).unwrap();
        let average = bits(&trainable.values);
        assert_ne!(average, values);
        adam.exchange_average(&mut trainable, processes).unwrap();
        assert_eq!(bits(&trainable.values), values);
        (values, average, moments.unwrap_or_default())
    }

    /// In shared memory (packets of 65,536 values) and over Gloo; with shares of several packets, unequal ones, and none.
    #[test]
    fn shares_of_the_optimizer_give_the_weights_of_the_whole_bit_by_bit() {
        for (length, size, shares_memory) in [(200_003, 2, true), (1000, 3, true), (70, 4, false), (5000, 2, false)] {
            for (kernel, offload) in [(Backend::Auto, false), (Backend::Composed, true)] {
                // torch divides larger tensors among its threads, at other places.
                let length = if kernel == Backend::Composed { length.min(20_000) } else { length };
                let (values, average, moments) = trained(length, kernel, offload, None);
                assert!(moments.iter().all(|moment| moment.len() == length as usize));
                let all = together(size, shares_memory, |processes| trained(length, kernel, offload, Some(processes)));
                for (rank, (found, found_average, collected)) in all.iter().enumerate() {
                    assert_eq!(found, &values, "process {rank} of {size}");
                    assert_eq!(found_average, &average, "average in process {rank} of {size}");
                    assert_eq!(collected.is_empty(), rank > 0);
                }
                assert_eq!(all[0].2, moments);
                assert_eq!(moments[2], average);
            }
        }
    }

    #[test]
    fn tensors_of_several_packets_are_added_up() {
        for shares_memory in [true, false] {
            let sums = together(3, shares_memory, |processes| {
                let mut tensor = Tensor::arange(150_001, FLOAT_CPU) + processes.rank() as f64;
                processes.sum(&mut tensor).unwrap();
                bits(&tensor)
            });
            let expected = bits(&(Tensor::arange(150_001, FLOAT_CPU) * 3.0 + 3.0));
            assert!(sums.iter().all(|sum| *sum == expected));
        }
    }

    #[test]
    fn every_process_has_at_most_its_share_of_the_state() {
        for (length, size) in [(131_000_000_usize, 4), (1_000_003, 7), (87_000, 2), (10, 3)] {
            let range = |rank| Stride(length.div_ceil(size).next_multiple_of(64)).range(rank, length);
            assert_eq!((0..size).map(|rank| range(rank).len()).sum::<usize>(), length);
            let most = (0..size).map(|rank| range(rank).len()).max().unwrap();
            assert!(most <= length.div_ceil(size) + 63);
        }
        let of_each = |length: i64| {
            together(2, true, |processes| {
                let (kernel, share) = (Backend::Auto, Share::of(processes));
                let options = AdamOptions {
                    weight_decay: 0.0,
                    gradient_clip: 0.0,
                    offload: false,
                    kernel,
                    share,
                    ..AdamOptions::PLAIN
                };
                Adam::new(&trainable(length), options).unwrap().bytes()
            })
        };
        let bytes = of_each(600_000);
        assert!(bytes.iter().all(|&bytes| bytes as f64 <= 1.05 * 8.0 * 300_000.0), "{bytes:?}");
        assert_eq!(bytes.iter().sum::<u64>(), 8 * 600_000);
        // A small state is not worth the exchange.
        assert_eq!(of_each(100_000), [800_000; 2]);
    }
}
