//! leeward.h, as far as this program uses it, and two types that keep its rules.
use std::{ffi::CStr, ptr, slice};

mod raw {
    use std::os::raw::{c_char, c_double, c_uchar, c_void};

    /// leeward_options; zeroed, it stands for the daemon's defaults.
    #[repr(C)]
    pub struct Options {
        pub size: usize,
        pub timeout: c_double,
        pub memory: u64,
        pub output: u64,
        pub processes: u64,
        pub name: *const c_char,
        pub module: *const c_char,
        pub arguments: *const *const c_char,
        pub argument_count: usize,
        pub environment: *const *const c_char,
        pub environment_count: usize,
        pub files: *const c_void,
        pub file_count: usize,
        pub collect: *const *const c_char,
        pub collect_count: usize,
        pub stdin_data: *const c_void,
        pub stdin_length: usize,
        pub deadline: c_double,
    }

    /// leeward_result, up to the last field that is read here; the library makes it.
    #[repr(C)]
    pub struct Result {
        pub size: usize,
        pub id: i64,
        pub outcome: i32,
        pub exit_code: i32,
        pub limit: i32,
        pub truncated: i32,
        pub stdout_data: *const c_uchar,
        pub stdout_length: usize,
        pub stderr_data: *const c_uchar,
        pub stderr_length: usize,
    }

    pub const TIMED_OUT: i32 = 4;

    extern "C" {
        pub fn leeward_connect(path: *const c_char) -> *mut c_void;
        pub fn leeward_disconnect(handle: *mut c_void);
        pub fn leeward_execute(
            handle: *mut c_void,
            code: *const c_char,
            length: usize,
            options: *const Options,
        ) -> *mut Result;
        pub fn leeward_free_result(result: *mut Result);
        pub fn leeward_last_error() -> *const c_char;
    }
}

/// A connection to the daemon. Not Sync: it is for one thread at a time.
pub struct Handle(ptr::NonNull<std::os::raw::c_void>);

// It may move to another thread, as long as only one has it.
unsafe impl Send for Handle {}

impl Handle {
    /// Finds the daemon where the command line does.
    pub fn connect() -> Result<Handle, String> {
        let handle = unsafe { raw::leeward_connect(ptr::null()) };
        ptr::NonNull::new(handle).map(Handle).ok_or_else(last_error)
    }

    /// Runs code for at most so many seconds; 0 is the daemon's default.
    pub fn execute(&mut self, code: &str, seconds: f64) -> Result<JobResult, String> {
        // All zero is valid for it: numbers and pointers that may be NULL.
        let mut options: raw::Options = unsafe { std::mem::zeroed() };
        options.size = std::mem::size_of::<raw::Options>();
        options.timeout = seconds;
        options.output = 64 << 20;
        let result = unsafe {
            raw::leeward_execute(self.0.as_ptr(), code.as_ptr().cast(), code.len(), &options)
        };
        ptr::NonNull::new(result)
            .map(JobResult)
            .ok_or_else(last_error)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        unsafe { raw::leeward_disconnect(self.0.as_ptr()) }
    }
}

/// What a job gave. It outlives its handle; a large one is mapped until it is dropped.
pub struct JobResult(ptr::NonNull<raw::Result>);

impl JobResult {
    fn raw(&self) -> &raw::Result {
        unsafe { self.0.as_ref() }
    }

    pub fn stdout(&self) -> &[u8] {
        // Never NULL, and of just that length until leeward_free_result.
        unsafe { slice::from_raw_parts(self.raw().stdout_data, self.raw().stdout_length) }
    }

    pub fn stderr(&self) -> &[u8] {
        unsafe { slice::from_raw_parts(self.raw().stderr_data, self.raw().stderr_length) }
    }

    pub fn exit_code(&self) -> i32 {
        self.raw().exit_code
    }

    pub fn timed_out(&self) -> bool {
        self.raw().outcome == raw::TIMED_OUT
    }
}

impl Drop for JobResult {
    fn drop(&mut self) {
        unsafe { raw::leeward_free_result(self.0.as_ptr()) }
    }
}

fn last_error() -> String {
    unsafe { CStr::from_ptr(raw::leeward_last_error()) }
        .to_string_lossy()
        .into_owned()
}
