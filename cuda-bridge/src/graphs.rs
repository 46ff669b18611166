//! Launches repeated sequences of calls at once, as graphs of the driver. A step is thousands of small kernels, the same ones
//! every time. One call then starts them all, without gaps between them that the host causes.
//!
//! A graph is identified by every function, number of blocks and argument in it, so it replaces exactly that sequence and no
//! other. Buffers' contents may change from step to step, among them all uniform data that the host writes. A sequence repeats
//! only if memory is given out at the same addresses. Other sequences are launched call by call, as is everything if the driver
//! has no graphs.

use std::collections::HashMap;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Call;
use crate::device::driver::{GraphCalls, Handle};
use crate::device::{Device, DeviceError};

/// The fewest calls of a graph: shorter sequences gain nothing.
const CALLS_MIN: usize = 2;
/// The most sequences that are remembered. A step of a GPT-2 has some twenty for each micro-batch, and returns to the same memory
/// every few steps.
const SEQUENCES_MAX: usize = 1024;

/// An executable graph of the driver.
struct Executable {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: the driver's functions take handles from any thread; every method makes the context current first.
unsafe impl Send for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        if let (Some(graphs), Ok(())) = (self.device.graph_calls(), self.device.current()) {
            // SAFETY: instantiated on this device and not destroyed yet; the driver waits for a launch that is under way.
            unsafe { (graphs.destroy_executable)(self.handle) };
        }
    }
}

/// A sequence that was launched before.
struct Known {
    /// The graph, made when the sequence comes back for the first time: most sequences that come once do not come back.
    executable: Option<Executable>,
    /// The time of the last launch.
    used: u64,
}

#[derive(Default)]
struct Sequences {
    /// The remembered sequences. Calls hold their kernels, so that no other function gets a handle that is remembered.
    known: HashMap<Vec<Call>, Known>,
    runs: u64,
    /// True after the driver refused to make a graph.
    off: bool,
}

/// Launches sequences of calls on one device.
pub struct Graphs {
    device: Arc<Device>,
    sequences: Mutex<Sequences>,
}

impl Graphs {
    /// Launches graphs if the driver has them (from CUDA 11.4 on); no sequence is known yet.
    pub fn new(device: &Arc<Device>) -> Graphs {
        let off = device.graph_calls().is_none();
        Graphs { device: device.clone(), sequences: Mutex::new(Sequences { off, ..Sequences::default() }) }
    }

    /// Switches graphs on or off, if the driver has them. The results are the same.
    pub fn set(&self, on: bool) {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        sequences.off = !on || self.device.graph_calls().is_none();
        sequences.known.clear();
    }

    /// Launches calls, each after the one before it and all after everything that was launched before.
    ///
    /// # Errors
    /// If the driver refuses a launch, or the GPU was lost.
    pub fn run(&self, calls: Vec<Call>) -> Result<(), DeviceError> {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let graphs = self.device.graph_calls().filter(|_| !sequences.off && calls.len() >= CALLS_MIN);
        let Some(graphs) = graphs else { return calls.iter().try_for_each(Call::launch) };
        sequences.runs += 1;
        let now = sequences.runs;
        let Some(known) = sequences.known.get_mut(&calls) else {
            calls.iter().try_for_each(Call::launch)?;
            sequences.remember(calls, now);
            return Ok(());
        };
        known.used = now;
        if known.executable.is_none() {
            match self.instantiate(graphs, &calls) {
                Ok(executable) => known.executable = Some(executable),
                Err(lost @ DeviceError::Lost { .. }) => return Err(lost),
                // Graphs cost memory, and some drivers have none for some GPUs; plain launches need neither.
                Err(_) => {
                    sequences.off = true;
                    sequences.known.clear();
                    return calls.iter().try_for_each(Call::launch);
                }
            }
        }
        let executable = known.executable.as_ref().expect("it was there, or was made");
        self.device.current()?;
        // SAFETY: the handle is an executable graph of this device, on the stream of all launches.
        self.device.check("cuGraphLaunch", unsafe { (graphs.launch)(executable.handle, null_mut()) })
    }

    /// A graph in which every call depends on the one before it.
    fn instantiate(&self, graphs: &GraphCalls, calls: &[Call]) -> Result<Executable, DeviceError> {
        self.device.current()?;
        let mut graph = null_mut();
        // SAFETY: the pointer is valid for writing a handle.
        self.device.check("cuGraphCreate", unsafe { (graphs.create)(&mut graph, 0) })?;
        let made = self.fill(graphs, graph, calls).and_then(|()| {
            let mut handle = null_mut();
            // SAFETY: the pointer is valid for writing a handle, and a graph.
            let status = unsafe { (graphs.instantiate)(&mut handle, graph, 0) };
            self.device.check("cuGraphInstantiate", status)?;
            Ok(Executable { device: self.device.clone(), handle })
        });
        // SAFETY: created above; the instantiated graph does not need it.
        unsafe { (graphs.destroy)(graph) };
        made
    }

    fn fill(&self, graphs: &GraphCalls, graph: Handle, calls: &[Call]) -> Result<(), DeviceError> {
        let mut before: Handle = null_mut();
        for (i, call) in calls.iter().enumerate() {
            let status = call.with_node(|node| {
                let (dependencies, count) = if i == 0 { (null(), 0) } else { (&raw const before, 1) };
                let mut added = null_mut();
                // SAFETY: the pointer is valid for writing a handle, a graph, a node of it if there is one, and parameters as cuda.h has them, which the
                // driver copies now, arguments included.
                let status = unsafe { (graphs.add_kernel)(&mut added, graph, dependencies, count, node) };
                (status, added)
            });
            let (status, added) = status;
            self.device.check("cuGraphAddKernelNode", status)?;
            before = added;
        }
        Ok(())
    }
}

impl Sequences {
    fn remember(&mut self, calls: Vec<Call>, now: u64) {
        if self.known.len() >= SEQUENCES_MAX {
            // The sequences that were not launched for longest are dropped, a quarter at a time.
            let mut used: Vec<u64> = self.known.values().map(|known| known.used).collect();
            used.sort_unstable();
            let least = used[SEQUENCES_MAX / 4];
            self.known.retain(|_, known| known.used >= least);
        }
        self.known.insert(calls, Known { executable: None, used: now });
    }
}
