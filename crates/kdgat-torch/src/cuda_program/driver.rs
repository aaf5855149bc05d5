//! Loading machine code and launching kernels with CUDA's driver.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;

use tch::Device;

use super::bindings::{self, COMPUTE_CAPABILITY, CudaHandle, CudaResult, Driver};
use super::{ProgramError, Source, disk_cache};
use crate::device::{Stream, synchronize};

/// A program loaded on one GPU.
#[derive(Debug)]
pub(super) struct Module {
    device: Device,
    /// The context, shared with torch.
    context: CudaHandle,
    functions: HashMap<&'static str, CudaHandle>,
}

// SAFETY: any thread may use the driver's handles; the current context is per thread and set for each call.
unsafe impl Send for Module {}
// SAFETY: see above; a launch modifies nothing in here.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn compile(source: &Source, index: usize) -> Result<Self, ProgramError> {
        let device = Device::Cuda(index);
        // torch creates its context first, and reports an error if the device does not exist.
        synchronize(device)?;
        let driver = driver()?;
        let what = "querying the GPU";
        let (mut handle, mut context, mut capability) = (0, ptr::null_mut(), [0; 2]);
        // SAFETY: each call writes its value before it returns; the context is retained until the process exits, like
        // torch's.
        unsafe {
            check(what, (driver.cuInit)(0))?;
            check(what, (driver.cuDeviceGet)(&mut handle, i32::try_from(index).unwrap_or(i32::MAX)))?;
            for (value, attribute) in capability.iter_mut().zip(COMPUTE_CAPABILITY) {
                check(what, (driver.cuDeviceGetAttribute)(value, attribute, handle))?;
            }
            check(what, (driver.cuDevicePrimaryCtxRetain)(&mut context, handle))?;
        }
        let code = disk_cache::compile(source, 10 * capability[0] + capability[1])?;
        let _current = Current::enter(context)?;
        let mut module = ptr::null_mut();
        // SAFETY: `code` comes from NVRTC (assembly ends with a zero byte), and the call copies it.
        check("loading a program on the GPU", unsafe { (driver.cuModuleLoadData)(&mut module, code.as_ptr().cast()) })?;
        let mut functions = HashMap::new();
        for &(kernel, _) in source.kernels {
            let name = CString::new(kernel).unwrap_or_default();
            let mut function = ptr::null_mut();
            // SAFETY: a loaded module and a null-terminated name.
            let found = unsafe { (driver.cuModuleGetFunction)(&mut function, module, name.as_ptr()) };
            check(&format!("finding kernel {kernel}"), found)?;
            functions.insert(kernel, function);
        }
        Ok(Self { device, context, functions })
    }

    /// Queues a kernel on the current stream.
    ///
    /// # Safety
    /// `arguments` must have a pointer for each of the kernel's parameters, to at least its size.
    pub(super) unsafe fn launch(
        &self,
        kernel: &str,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), ProgramError> {
        let problem = "is not in the program".to_owned();
        let missing = || ProgramError::Argument { kernel: kernel.to_owned(), problem };
        let driver = driver()?;
        let function = *self.functions.get(kernel).ok_or_else(missing)?;
        let stream = Stream::current(self.device)?.native_handle()? as CudaHandle;
        let _current = Current::enter(self.context)?;
        // SAFETY: a function of a loaded module, and a stream of the same context; the arguments by this function's
        // contract.
        let launched = unsafe {
            (driver.cuLaunchKernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(&format!("launching kernel {kernel}"), launched)
    }
}

/// Guard that makes a context current on this thread.
struct Current;

impl Current {
    fn enter(context: CudaHandle) -> Result<Self, ProgramError> {
        let driver = driver()?;
        // SAFETY: the context is retained until the process exits.
        check("entering torch's context", unsafe { (driver.cuCtxPushCurrent_v2)(context) })?;
        Ok(Self)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: pops the context that `enter` pushed on the same thread.
        let left = driver()
            .and_then(|driver| check("leaving torch's context", unsafe { (driver.cuCtxPopCurrent_v2)(&mut context) }));
        if let Err(error) = left {
            tracing::error!("{error}");
        }
    }
}

/// CUDA's driver, which torch has loaded if there is a GPU.
fn driver() -> Result<&'static Driver, ProgramError> {
    bindings::driver().ok_or_else(|| ProgramError::Refused {
        what: "loading CUDA's driver".to_owned(),
        reason: "libcuda.so cannot be loaded".to_owned(),
    })
}

fn check(what: &str, result: CudaResult) -> Result<(), ProgramError> {
    if result == 0 {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the call writes `text` before it returns: null, or a text that is never freed.
    let reason = bindings::driver().and_then(|driver| unsafe {
        let known = (driver.cuGetErrorString)(result, &mut text) == 0 && !text.is_null();
        known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    });
    Err(ProgramError::Refused {
        what: what.to_owned(),
        reason: reason.unwrap_or_else(|| format!("CUDA error {result}")),
    })
}
