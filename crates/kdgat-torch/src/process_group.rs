//! Processes that train together, on torch's own c10d: a store of keys and values at which they meet, and sums over all of them with Gloo.
//!
//! Every process must call the operations of a group in the same order. An operation that another process does not join ends with an error
//! when that process ends, or after the group's time limit.

use std::ffi::{CString, c_char, c_void};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::ffi::check;
use super::view;

/// Number of processes up to which small packets are sent by each to each.
const EXCHANGED_DIRECTLY: usize = 16;
/// Most bytes of a small packet.
const SMALL_BYTES: usize = 1 << 16;
/// Tags of direct messages are reused after this many.
const TAGS: i32 = 1 << 20;

/// A store of keys and values that one process hosts.
#[derive(Debug)]
pub struct Store {
    raw: NonNull<c_void>,
}

// SAFETY: c10d's stores lock themselves in every operation.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

/// The store to open.
#[derive(Debug)]
pub enum Rendezvous {
    /// Hosts a store on this socket.
    Host(TcpListener),
    /// Connects to the store at this address.
    Connect,
}

impl Store {
    /// Opens a store at `host` and `port`. All keys begin with `prefix`. Operations wait at most `timeout`.
    ///
    /// # Errors
    /// A store that does not answer in time.
    pub fn open(
        rendezvous: Rendezvous,
        (host, port): (&str, u16),
        prefix: &str,
        timeout: Duration,
    ) -> Result<Self, TchError> {
        let listening = match rendezvous {
            // The store closes the socket.
            Rendezvous::Host(listener) => listener.into_raw_fd(),
            Rendezvous::Connect => -1,
        };
        let (host, prefix) = (text(host)?, text(prefix)?);
        let mut raw = ptr::null_mut();
        // SAFETY: texts that outlive the call; `raw` is written on success.
        unsafe {
            check(kdgat_store_open(host.as_ptr(), port, listening, prefix.as_ptr(), millis(timeout), &mut raw))?;
        }
        opened(raw).map(|raw| Self { raw })
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// A lost connection.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), TchError> {
        let key = text(key)?;
        // SAFETY: a live store, and a key and bytes that outlive the call.
        unsafe { check(kdgat_store_set(self.raw.as_ptr(), key.as_ptr(), value.as_ptr(), value.len())) }
    }

    /// True if a key has a value; does not wait for one.
    ///
    /// # Errors
    /// A lost connection.
    pub fn has(&self, key: &str) -> Result<bool, TchError> {
        let key = text(key)?;
        let mut has = false;
        // SAFETY: a live store, and a key that outlives the call.
        unsafe { check(kdgat_store_has(self.raw.as_ptr(), key.as_ptr(), &mut has))? };
        Ok(has)
    }

    /// The value of a key; waits for it.
    ///
    /// # Errors
    /// A key without a value when the store's time is up, or a lost connection.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, TchError> {
        let key = text(key)?;
        let mut value: Vec<u8> = Vec::new();
        // SAFETY: a live store and a key that outlives the call; `take` gets the address of `value`, which nobody else uses meanwhile.
        unsafe { check(kdgat_store_get(self.raw.as_ptr(), key.as_ptr(), ptr::from_mut(&mut value).cast(), take))? };
        Ok(value)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, and closed once.
        unsafe { kdgat_store_close(self.raw.as_ptr()) };
    }
}

/// The network over which processes exchange tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// This network interface, such as `eth0`.
    Interface(String),
    /// The interface with the address of this host name.
    Address(String),
    /// The interface with the address of this machine's name.
    OfThisMachine,
}

/// A connection of each process to each.
#[derive(Debug)]
pub struct ProcessGroup {
    raw: NonNull<c_void>,
    rank: usize,
    size: usize,
    next_tag: AtomicI32,
}

// SAFETY: c10d's groups lock themselves in every operation.
unsafe impl Send for ProcessGroup {}
// SAFETY: as above.
unsafe impl Sync for ProcessGroup {}

impl ProcessGroup {
    /// Connects this process, `rank` of `size`, with the others that opened the same store. Operations wait at most `timeout`.
    ///
    /// # Errors
    /// A process that does not come in time, or a network that does not exist.
    pub fn open(
        store: &Store,
        (rank, size): (usize, usize),
        network: &Network,
        timeout: Duration,
    ) -> Result<Self, TchError> {
        let number = |value: usize| i32::try_from(value).map_err(|_| TchError::Shape(format!("{value} processes")));
        let [interface, address] = match network {
            Network::Interface(name) => [Some(text(name)?), None],
            Network::Address(name) => [None, Some(text(name)?)],
            Network::OfThisMachine => [None, None],
        };
        let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut raw = ptr::null_mut();
        // SAFETY: a live store, and texts that outlive the call; `raw` is written on success.
        unsafe {
            check(kdgat_group_open(
                store.raw.as_ptr(),
                number(rank)?,
                number(size)?,
                pointer(&interface),
                pointer(&address),
                millis(timeout),
                &mut raw,
            ))?;
        }
        opened(raw).map(|raw| Self { raw, rank, size, next_tag: AtomicI32::new(0) })
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Replaces a contiguous CPU tensor by its sum over all processes, the same bits in each.
    ///
    /// # Errors
    /// A process that ended or did not join in time, or a tensor of another device or layout.
    pub fn sum(&self, tensor: &mut Tensor) -> Result<(), TchError> {
        expect_plain("a tensor to sum", tensor)?;
        // SAFETY: a live group and tensor; the call returns when the operation has ended.
        unsafe { check(kdgat_group_sum(self.raw.as_ptr(), tensor.as_ptr())) }
    }

    /// Replaces a contiguous CPU tensor by that of process `root`.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::sum`].
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<(), TchError> {
        expect_plain("a tensor to broadcast", tensor)?;
        // SAFETY: a live group and tensor; the call returns when the operation has ended.
        unsafe { check(kdgat_group_broadcast(self.raw.as_ptr(), tensor.as_ptr(), root as i32)) }
    }

    /// The numbers of all processes, one after the other: each gives as many. Meant for few numbers.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::sum`].
    pub fn exchange(&self, numbers: &[f64]) -> Result<Vec<f64>, TchError> {
        let own = Tensor::f_from_slice(numbers)?;
        let gathered = self.gather(&own)?;
        Ok(view::read::<f64>("exchanged numbers", &gathered)?.to_vec())
    }

    /// Waits for all processes.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::sum`].
    pub fn barrier(&self) -> Result<(), TchError> {
        self.exchange(&[0.0]).map(drop)
    }

    /// The bytes of all processes, which may differ in number.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::sum`].
    pub fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TchError> {
        let lengths: Vec<usize> = self.exchange(&[bytes.len() as f64])?.iter().map(|&length| length as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let gathered = self.gather(&Tensor::f_from_slice(&padded)?)?;
        let rows = view::read::<u8>("gathered bytes", &gathered)?.chunks_exact(longest);
        Ok(rows.zip(lengths).map(|(row, length)| row[..length.min(longest)].to_vec()).collect())
    }

    /// The contiguous CPU tensors of all processes, `[processes, ...]`; each gives one of the same size.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::sum`].
    pub fn gather(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        expect_plain("a tensor to gather", tensor)?;
        let bytes = tensor.numel() * tensor.f_kind()?.elt_size_in_bytes();
        let size: Vec<i64> = [self.size as i64].into_iter().chain(tensor.size()).collect();
        let gathered = Tensor::f_zeros(size, (tensor.f_kind()?, Device::Cpu))?;
        if self.size <= EXCHANGED_DIRECTLY && bytes <= SMALL_BYTES {
            let tag = self.next_tag.fetch_add(1, Ordering::Relaxed).rem_euclid(TAGS);
            // SAFETY: a live group and tensors; the call returns when the operation has ended.
            unsafe { check(kdgat_group_exchange(self.raw.as_ptr(), tensor.as_ptr(), gathered.as_ptr(), tag))? };
        } else {
            // SAFETY: as above.
            unsafe { check(kdgat_group_gather(self.raw.as_ptr(), tensor.as_ptr(), gathered.as_ptr()))? };
        }
        Ok(gathered)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, and closed once.
        unsafe { kdgat_group_close(self.raw.as_ptr()) };
    }
}

fn expect_plain(name: &str, tensor: &Tensor) -> Result<(), TchError> {
    let kind = tensor.f_kind()?;
    let is_plain = tensor.device() == Device::Cpu && tensor.is_contiguous();
    if is_plain && matches!(kind, Kind::Float | Kind::Double | Kind::Int64 | Kind::Uint8) {
        return Ok(());
    }
    Err(TchError::Shape(format!(
        "{name} must be contiguous on the CPU and of f32, f64, i64 or u8, got {kind:?} on {:?}",
        tensor.device()
    )))
}

fn text(value: &str) -> Result<CString, TchError> {
    CString::new(value).map_err(|_| TchError::Torch(format!("{value:?} has a zero byte")))
}

fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1)
}

fn opened(raw: *mut c_void) -> Result<NonNull<c_void>, TchError> {
    NonNull::new(raw).ok_or_else(|| TchError::Torch("c10d returned nothing".to_owned()))
}

/// Copies a value into the vector at `context`.
extern "C" fn take(context: *mut c_void, bytes: *const u8, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: `Store::get` passes the address of a vector that it does not use meanwhile; C++ passes `count` bytes.
    unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, count)) };
}

unsafe extern "C" {
    fn kdgat_store_open(
        host: *const c_char,
        port: u16,
        listening: i32,
        prefix: *const c_char,
        timeout_ms: i64,
        opened: *mut *mut c_void,
    ) -> *mut c_char;
    fn kdgat_store_close(store: *mut c_void);
    fn kdgat_store_set(store: *mut c_void, key: *const c_char, bytes: *const u8, count: usize) -> *mut c_char;
    fn kdgat_store_has(store: *mut c_void, key: *const c_char, has: *mut bool) -> *mut c_char;
    fn kdgat_store_get(
        store: *mut c_void,
        key: *const c_char,
        context: *mut c_void,
        take: extern "C" fn(*mut c_void, *const u8, usize),
    ) -> *mut c_char;
    fn kdgat_group_open(
        store: *mut c_void,
        rank: i32,
        size: i32,
        interface: *const c_char,
        hostname: *const c_char,
        timeout_ms: i64,
        opened: *mut *mut c_void,
    ) -> *mut c_char;
    fn kdgat_group_close(group: *mut c_void);
    fn kdgat_group_sum(group: *mut c_void, tensor: *const C_tensor) -> *mut c_char;
    fn kdgat_group_broadcast(group: *mut c_void, tensor: *const C_tensor, root: i32) -> *mut c_char;
    fn kdgat_group_exchange(
        group: *mut c_void,
        tensor: *const C_tensor,
        gathered: *const C_tensor,
        tag: i32,
    ) -> *mut c_char;
    fn kdgat_group_gather(group: *mut c_void, tensor: *const C_tensor, gathered: *const C_tensor) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Runs `work` as each of `size` processes, on a thread each.
    fn together<T: Send>(size: usize, work: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = Store::open(Rendezvous::Host(listener), ("127.0.0.1", port), "host", TIMEOUT).unwrap();
        let results = std::thread::scope(|scope| {
            let start = |rank| {
                let work = &work;
                scope.spawn(move || {
                    let store = Store::open(Rendezvous::Connect, ("127.0.0.1", port), "test", TIMEOUT).unwrap();
                    let network = Network::Address("127.0.0.1".to_owned());
                    work(ProcessGroup::open(&store, (rank, size), &network, TIMEOUT).unwrap())
                })
            };
            let threads: Vec<_> = (0..size).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drop(host);
        results
    }

    #[test]
    fn all_processes_get_the_same_sums() {
        let sums = together(3, |group| {
            let mut tensor = Tensor::from_slice(&[group.rank() as f32, 0.1 * group.rank() as f32]);
            group.sum(&mut tensor).unwrap();
            let numbers = group.exchange(&[group.rank() as f64, 0.5]).unwrap();
            let bytes = group.gather_bytes(&vec![7; group.rank()]).unwrap();
            // More than a small packet.
            let row = Tensor::full([20_000], group.rank() as f64, (Kind::Float, Device::Cpu));
            let rows = Vec::<f32>::try_from(group.gather(&row).unwrap().flatten(0, -1)).unwrap();
            assert!(rows.chunks(20_000).enumerate().all(|(rank, row)| row.iter().all(|&value| value == rank as f32)));
            assert_eq!(rows.len(), 60_000);
            let mut root = Tensor::from_slice(&[group.rank() as i64 + 40]);
            group.broadcast(&mut root, 2).unwrap();
            group.barrier().unwrap();
            (Vec::<f32>::try_from(tensor).unwrap(), numbers, bytes, root.int64_value(&[0]))
        });
        for (tensor, numbers, bytes, root) in &sums {
            assert_eq!(tensor, &sums[0].0);
            assert!((tensor[0] - 3.0).abs() < 1e-6 && (tensor[1] - 0.3).abs() < 1e-6);
            assert_eq!(numbers, &[0.0, 0.5, 1.0, 0.5, 2.0, 0.5]);
            assert_eq!(bytes, &[vec![], vec![7], vec![7, 7]]);
            assert_eq!(*root, 42);
        }
    }

    #[test]
    fn a_process_that_ends_is_an_error_for_the_others() {
        let errors = together(2, |group| {
            // Both have connected when the second one ends.
            group.exchange(&[0.0]).unwrap();
            match group.rank() {
                0 => group.exchange(&[1.0]).err().map(|error| error.to_string()),
                _ => None,
            }
        });
        assert!(errors[0].as_ref().is_some_and(|text| text.contains("127.0.0.1")), "{errors:?}");
    }

    #[test]
    fn keys_have_the_values_that_were_set() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = Store::open(Rendezvous::Host(listener), ("127.0.0.1", port), "a", TIMEOUT).unwrap();
        let open = |prefix| Store::open(Rendezvous::Connect, ("127.0.0.1", port), prefix, TIMEOUT).unwrap();
        let (same, other) = (open("a"), open("b"));
        host.set("key", &[1, 0, 2]).unwrap();
        host.set("empty", &[]).unwrap();
        assert_eq!((same.get("key").unwrap(), same.get("empty").unwrap()), (vec![1, 0, 2], vec![]));
        assert!(same.has("key").unwrap() && !same.has("none").unwrap() && !other.has("key").unwrap());
        let short = Store::open(Rendezvous::Connect, ("127.0.0.1", port), "a", Duration::from_millis(50)).unwrap();
        assert!(short.get("none").is_err());
        drop(host);
        assert!(same.get("key").is_err());
    }

    #[test]
    fn other_tensors_are_refused() {
        let errors = together(1, |group| {
            let mut transposed = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)).transpose(0, 1);
            [group.sum(&mut transposed).is_err(), group.sum(&mut Tensor::from_slice(&[true])).is_err()]
        });
        assert_eq!(errors[0], [true, true]);
    }
}
