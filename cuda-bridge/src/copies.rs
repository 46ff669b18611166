//! Copies that need no waiting, by way of page-locked memory. Results go to the host in parallel with later launches, on streams
//! of their own. Data from the host are ordered among the launches without stopping them.
//!
//! Written after the driver's documentation; **nothing here has run on a GPU yet**. If the driver lacks the functions, there are
//! no such copies, and [`Memory::read`] and [`Memory::write`] do the same later.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::driver::{CopyCalls, Handle, NOT_READY};
use crate::device::{Device, DeviceError, Memory, Slice};

/// The most bytes of one such copy: page-locked memory is scarce for the whole system.
pub const BYTES_MAX: usize = 16 << 20;
/// The most bytes on their way to the GPU.
const UPLOADS_MAX: usize = 64 << 20;
/// The least size of page-locked memory: a page.
const BYTES_MIN: usize = 4096;
/// The flag of a stream that does not wait by itself for the stream of all launches (CU_STREAM_NON_BLOCKING).
const BESIDE: u32 = 1;
/// The flag of an event that records no time (CU_EVENT_DISABLE_TIMING).
const UNTIMED: u32 = 2;

/// An event of the driver.
struct Event {
    device: Arc<Device>,
    handle: Handle,
}

/// Page-locked memory of the host, with an event that is reached when a copy there has ended. The memory is dropped only when no
/// copy is under way.
struct Place {
    ended: Event,
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: the driver's functions take handles from any thread; every method makes the context current first.
unsafe impl Send for Event {}
// SAFETY: as above; the memory is the place's own.
unsafe impl Send for Place {}

impl Event {
    fn new(device: &Arc<Device>, calls: &CopyCalls) -> Result<Event, DeviceError> {
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for writing a handle.
        device.check("cuEventCreate", unsafe { (calls.create_event)(&mut handle, UNTIMED) })?;
        Ok(Event { device: device.clone(), handle })
    }

    /// Records the event behind everything that a stream was given so far; null is the stream of all launches.
    fn record(&self, calls: &CopyCalls, stream: Handle) -> Result<(), DeviceError> {
        // SAFETY: an event and a stream of this device.
        self.device.check("cuEventRecord", unsafe { (calls.record)(self.handle, stream) })
    }

    /// True if everything before the event has ended.
    fn is_there(&self, calls: &CopyCalls) -> Result<bool, DeviceError> {
        // SAFETY: an event of this device.
        let status = unsafe { (calls.query)(self.handle) };
        if status == NOT_READY {
            return Ok(false);
        }
        self.device.check("cuEventQuery", status).map(|()| true)
    }

    fn wait(&self, calls: &CopyCalls) -> Result<(), DeviceError> {
        self.device.current()?;
        // SAFETY: an event of this device.
        self.device.check("cuEventSynchronize", unsafe { (calls.synchronize)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let (Some(calls), Ok(())) = (self.device.copy_calls(), self.device.current()) {
            // SAFETY: created on this device and not destroyed yet.
            unsafe { (calls.destroy_event)(self.handle) };
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let device = &self.ended.device;
        if let (Some(calls), Ok(())) = (device.copy_calls(), device.current()) {
            // SAFETY: allocated on this device and not freed yet.
            unsafe { (calls.free_host)(self.at) };
        }
    }
}

#[derive(Default)]
struct Places {
    idle: Vec<Place>,
    /// Memory of copies to the GPU, in order.
    uploads: VecDeque<Place>,
}

/// A stream of the driver.
struct Stream {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: as of events.
unsafe impl Send for Stream {}

impl Stream {
    fn new(device: &Arc<Device>, calls: &CopyCalls) -> Result<Stream, DeviceError> {
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for writing a handle.
        device.check("cuStreamCreate", unsafe { (calls.create_stream)(&mut handle, BESIDE) })?;
        Ok(Stream { device: device.clone(), handle })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (Some(calls), Ok(())) = (self.device.copy_calls(), self.device.current()) {
            // SAFETY: created on this device and not destroyed yet; copies on the stream keep it and are waited for.
            unsafe { (calls.destroy_stream)(self.handle) };
        }
    }
}

struct Inner {
    device: Arc<Device>,
    /// The stream of copies that wait for launches.
    behind: Stream,
    /// The stream of copies that wait for nothing, not even for copies that wait.
    beside: Stream,
    /// The event behind everything that was launched before a copy.
    launched: Event,
    places: Mutex<Places>,
    /// True after the driver refused a call.
    off: AtomicBool,
}

// SAFETY: the driver's functions take handles from any thread; every method makes the context current first.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks what it shares, and `launched` is recorded and waited for under the places' lock.
unsafe impl Sync for Inner {}

/// Copies between one device and the host.
pub struct Copies(Arc<Inner>);

/// A copy to the host that is under way. Dropping it waits for it.
pub struct Copying {
    inner: Arc<Inner>,
    /// `Some` until the copy is dropped.
    place: Option<Place>,
    bytes: usize,
}

impl Copies {
    /// The copies of a device; `None` if the driver lacks the functions, or refuses a stream.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn new(device: &Arc<Device>) -> Result<Option<Copies>, DeviceError> {
        let Some(calls) = device.copy_calls() else { return Ok(None) };
        device.current()?;
        let make = || {
            let [behind, beside] = [Stream::new(device, calls)?, Stream::new(device, calls)?];
            let (launched, places, off) =
                (Event::new(device, calls)?, Mutex::default(), AtomicBool::new(false));
            Ok(Inner { device: device.clone(), behind, beside, launched, places, off })
        };
        Ok(unless_refused(make())?.map(|inner| Copies(Arc::new(inner))))
    }

    /// Begins to copy parts of memory to the host, one after the other: after everything that was launched before, in parallel
    /// with everything that is launched later. Until the copy is dropped, no launch may write these parts, and nobody else may be
    /// given them. `None` if the parts can only be read by waiting.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn begin(&self, from: &[Slice]) -> Result<Option<Copying>, DeviceError> {
        self.0.unless_off(|calls| Inner::download(&self.0, calls, from, true))
    }

    /// Shows a part of memory, in parallel with running launches. The launches that write the part must have ended: the caller
    /// waited for a [`Copying`] that was begun after them. Returns true if the bytes were shown.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn read(&self, from: Slice, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DeviceError> {
        let copying = self.0.unless_off(|calls| Inner::download(&self.0, calls, &[from], false))?;
        copying.map_or(Ok(false), |copying| copying.end(visit).map(|()| true))
    }

    /// Replaces memory's first bytes, after everything that was launched before and before everything that is launched later,
    /// without waiting for either. Returns true if the copy was begun.
    ///
    /// # Errors
    /// If the GPU was lost.
    ///
    /// # Panics
    /// If there are more bytes than the memory holds.
    pub fn write(&self, memory: &Memory, bytes: &[u8]) -> Result<bool, DeviceError> {
        let to = memory.slice(0, bytes.len());
        let begun = self.0.unless_off(|calls| self.0.upload(calls, to, bytes))?;
        Ok(begun.is_some())
    }
}

/// The result of the driver, or `None` if the driver refuses: then there are other ways. A lost GPU is an error.
fn unless_refused<T>(done: Result<T, DeviceError>) -> Result<Option<T>, DeviceError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(lost @ DeviceError::Lost { .. }) => Err(lost),
        Err(_) => Ok(None),
    }
}

impl Inner {
    /// Calls `act`, unless the driver refuses it now or refused an earlier call.
    fn unless_off<T>(
        &self,
        act: impl FnOnce(&CopyCalls) -> Result<Option<T>, DeviceError>,
    ) -> Result<Option<T>, DeviceError> {
        let Some(calls) = self.device.copy_calls().filter(|_| !self.off.load(Ordering::Acquire)) else {
            return Ok(None);
        };
        self.device.current()?;
        let done = unless_refused(act(calls))?;
        if done.is_none() {
            self.off.store(true, Ordering::Release);
        }
        Ok(done.flatten())
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Page-locked memory for so many bytes: an idle one, or a new one.
    fn place(&self, calls: &CopyCalls, bytes: usize) -> Result<Place, DeviceError> {
        let size = bytes.next_power_of_two().max(BYTES_MIN);
        let mut places = self.places();
        while let Some(place) = places.uploads.pop_front() {
            let under_way =
                size + place.bytes + places.uploads.iter().map(|place| place.bytes).sum::<usize>();
            let ended = if under_way > UPLOADS_MAX {
                place.ended.wait(calls).map(|()| true)
            } else {
                place.ended.is_there(calls)
            };
            match ended {
                Ok(true) => places.idle.push(place),
                Ok(false) => {
                    places.uploads.push_front(place);
                    break;
                }
                Err(error) => {
                    std::mem::forget(place); // a copy may still be under way
                    return Err(error);
                }
            }
        }
        if let Some(at) = places.idle.iter().position(|place| place.bytes == size) {
            return Ok(places.idle.swap_remove(at));
        }
        drop(places);
        let ended = Event::new(&self.device, calls)?;
        let mut at = null_mut();
        // SAFETY: the pointer is valid for writing an address.
        self.device.check("cuMemAllocHost", unsafe { (calls.allocate_host)(&mut at, size) })?;
        Ok(Place { ended, at, bytes: size })
    }

    fn download(
        self: &Arc<Inner>,
        calls: &CopyCalls,
        from: &[Slice],
        after_launches: bool,
    ) -> Result<Option<Copying>, DeviceError> {
        let bytes = from.iter().map(|slice| slice.bytes()).sum();
        if bytes > BYTES_MAX {
            return Ok(None);
        }
        let place = self.place(calls, bytes)?;
        match self.fill(calls, &place, from, after_launches) {
            Ok(()) => Ok(Some(Copying { inner: self.clone(), place: Some(place), bytes })),
            Err(error) => {
                std::mem::forget(place); // no event says when the begun copies have ended
                Err(error)
            }
        }
    }

    fn fill(
        &self,
        calls: &CopyCalls,
        place: &Place,
        from: &[Slice],
        after_launches: bool,
    ) -> Result<(), DeviceError> {
        let stream = if after_launches { self.behind.handle } else { self.beside.handle };
        if after_launches {
            let _one_at_a_time = self.places();
            self.launched.record(calls, null_mut())?;
            // SAFETY: a stream and an event of this device; the event's present state counts.
            let status = unsafe { (calls.wait_event)(stream, self.launched.handle, 0) };
            self.device.check("cuStreamWaitEvent", status)?;
        }
        let mut at = 0;
        for slice in from.iter().filter(|slice| slice.bytes() != 0) {
            // SAFETY: as many bytes as both sides have; the place is this copy's until it has ended.
            let status =
                unsafe { (calls.download)(place.at.byte_add(at), slice.address(), slice.bytes(), stream) };
            self.device.check("cuMemcpyDtoHAsync", status)?;
            at += slice.bytes();
        }
        place.ended.record(calls, stream)
    }

    fn upload(&self, calls: &CopyCalls, to: Slice, bytes: &[u8]) -> Result<Option<()>, DeviceError> {
        if bytes.is_empty() || bytes.len() > BYTES_MAX {
            return Ok(bytes.is_empty().then_some(()));
        }
        let place = self.place(calls, bytes.len())?;
        // SAFETY: the place has as many bytes and nobody else uses it.
        unsafe { place.at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: as many bytes as both sides have; null is the stream of all launches.
        let status = unsafe { (calls.upload)(to.address(), place.at, bytes.len(), null_mut()) };
        self.device.check("cuMemcpyHtoDAsync", status)?;
        if let Err(error) = place.ended.record(calls, null_mut()) {
            std::mem::forget(place); // no event says when the copy has ended
            return Err(error);
        }
        self.places().uploads.push_back(place);
        Ok(Some(()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(calls) = self.device.copy_calls() else { return };
        let places = self.places.get_mut().unwrap_or_else(PoisonError::into_inner);
        for place in places.uploads.drain(..) {
            match place.ended.wait(calls) {
                Ok(()) => places.idle.push(place),
                Err(_) => std::mem::forget(place),
            }
        }
    }
}

impl Copying {
    /// Waits for the copy, but for nothing that was launched after the copy was begun, and shows the bytes.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    pub fn end(self, visit: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        let calls = self.inner.device.copy_calls().expect("it was begun by them");
        let place = self.place.as_ref().expect("there until it is dropped");
        place.ended.wait(calls)?;
        // SAFETY: the copy has ended, and the place is this one's until it is dropped.
        visit(unsafe { std::slice::from_raw_parts(place.at.cast::<u8>(), self.bytes) });
        Ok(())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let (Some(calls), Some(place)) = (self.inner.device.copy_calls(), self.place.take()) else { return };
        match place.ended.wait(calls) {
            Ok(()) => self.inner.places().idle.push(place),
            // Nobody knows if the GPU still writes there.
            Err(_) => std::mem::forget(place),
        }
    }
}
