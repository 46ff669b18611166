//! Measures the time of each launch, with an event of the driver before it and one behind it.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Call;
use crate::device::driver::{CopyCalls, Handle, TimeCalls};
use crate::device::{Device, DeviceError};

/// A launch that was timed.
#[derive(Clone, Debug)]
pub struct Timed {
    /// The purpose, as the caller announced it; the kernel's name if nobody did.
    pub name: String,
    /// The kernel's name.
    pub kernel: String,
    /// Blocks along each dimension.
    pub groups: [u32; 3],
    /// The time from the end of everything launched before to the end of this launch. Events resolve half a microsecond, and an
    /// empty kernel takes a few.
    pub seconds: f64,
}

struct Event {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: the driver's functions take handles from any thread; every method makes the context current first.
unsafe impl Send for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        if let (Some(calls), Ok(())) = (self.device.copy_calls(), self.device.current()) {
            // SAFETY: created on this device and not destroyed yet.
            unsafe { (calls.destroy_event)(self.handle) };
        }
    }
}

#[derive(Default)]
struct State {
    names: VecDeque<String>,
    launched: Vec<(Timed, Event, Event)>,
}

/// Launches calls one by one and times each.
pub struct Timer {
    device: Arc<Device>,
    state: Mutex<State>,
}

impl Timer {
    /// A timer for launches on this device, before the first of them.
    ///
    /// # Errors
    /// If the driver lacks the functions for it.
    pub fn new(device: &Arc<Device>) -> Result<Timer, DeviceError> {
        calls(device)?;
        Ok(Timer { device: device.clone(), state: Mutex::default() })
    }

    /// Announces the purposes of the next launches, in order.
    pub fn announce(&self, names: &mut dyn Iterator<Item = String>) {
        self.lock().names.extend(names);
    }

    /// Drops a name, whose purpose is no launch of ours.
    pub fn skip(&self) {
        self.lock().names.pop_front();
    }

    /// Launches calls in order.
    ///
    /// # Errors
    /// If the driver refuses, or the GPU was lost.
    pub fn run(&self, launches: &[Call]) -> Result<(), DeviceError> {
        let (events, _) = calls(&self.device)?;
        self.device.current()?;
        for call in launches {
            let before = self.recorded(events)?;
            call.launch()?;
            let after = self.recorded(events)?;
            let (kernel, groups) = call.what();
            let mut state = self.lock();
            let name = state.names.pop_front().unwrap_or_else(|| kernel.into());
            let timed = Timed { name, kernel: kernel.into(), groups, seconds: 0.0 };
            state.launched.push((timed, before, after));
        }
        Ok(())
    }

    /// Waits for the launches since the last call, and returns them with their times.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    pub fn take(&self) -> Result<Vec<Timed>, DeviceError> {
        self.device.finish()?;
        let (_, times) = calls(&self.device)?;
        let launched = std::mem::take(&mut *self.lock()).launched;
        let measure = |(timed, before, after): (Timed, Event, Event)| {
            let mut milliseconds = 0f32;
            // SAFETY: the pointer is valid for writing a number, and two events that were recorded on this device.
            let status = unsafe { (times.elapsed)(&mut milliseconds, before.handle, after.handle) };
            self.device.check("cuEventElapsedTime", status)?;
            Ok(Timed { seconds: f64::from(milliseconds) / 1e3, ..timed })
        };
        launched.into_iter().map(measure).collect()
    }

    fn recorded(&self, calls: &CopyCalls) -> Result<Event, DeviceError> {
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for writing a handle; zero asks for an event that takes the time.
        self.device.check("cuEventCreate", unsafe { (calls.create_event)(&mut handle, 0) })?;
        let event = Event { device: self.device.clone(), handle };
        // SAFETY: an event of this device; null is the stream of all launches.
        self.device.check("cuEventRecord", unsafe { (calls.record)(event.handle, null_mut()) })?;
        Ok(event)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// Tells a profiler that watches this process to start recording, or to stop.
    ///
    /// # Errors
    /// If the driver lacks the functions for it.
    pub fn profile(self: &Arc<Device>, on: bool) -> Result<(), DeviceError> {
        let (_, times) = calls(self)?;
        self.current()?;
        // SAFETY: calls without arguments.
        let status = unsafe { if on { (times.profiler_start)() } else { (times.profiler_stop)() } };
        self.check("cuProfilerStart", status)
    }
}

fn calls(device: &Arc<Device>) -> Result<(&CopyCalls, &TimeCalls), DeviceError> {
    let message = "the driver lacks it".into();
    let calls = device.copy_calls().zip(device.driver().times.as_ref());
    calls.ok_or(DeviceError::Failed { call: "cuEventElapsedTime", message })
}
