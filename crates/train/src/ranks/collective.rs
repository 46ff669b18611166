//! The network that ranks need: messages between two of them, and the exchange in which every rank sends to every rank.

use std::ops::Range;

use crate::error::{RankError, TrainError};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::{Engine, EngineError, Tensor};

/// The transport of gradients between ranks; everything else goes over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// Through the hosts' memory.
    Tcp = 0,
    /// From GPU to GPU, by NVIDIA's NCCL.
    Nccl = 1,
    /// From memory to memory, by MPI.
    Mpi = 2,
}

/// The kind of a message. A message of another kind than the expected one is an error of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// Transport: a connecting rank states its number.
    Hello = 1,
    /// Transport: rank 0 sends the addresses of the others.
    Peers = 2,
    /// Rank 0: the run's identity and job.
    Welcome = 3,
    /// Rank 0: a tensor of the state to begin with. To rank 0: a slot that it asked for.
    State = 4,
    /// To rank 0: the sender's run, program and state after the welcome.
    Ready = 5,
    /// Rank 0: a step, or the end.
    Step = 6,
    /// Rank 0: the receiver's micro-batches.
    Batch = 7,
    /// All to all: gradients, and new parameters if the optimizer's slots are divided.
    Gradient = 8,
    /// To rank 0: the results of the sender's share of the step.
    Share = 9,
    /// The sender stops, with the reason.
    Abort = 10,
    /// NCCL's transport: to rank 0, the sender's GPU and library; back, the id under which all ranks connect.
    Meet = 11,
    /// NCCL's and MPI's transports, all to all: the sender is ready for its exchange.
    Here = 12,
}

/// A network between ranks. Every rank calls the same methods in the same order. Bytes between two ranks arrive whole and in
/// order, or not at all.
///
/// [`super::tcp::Tcp`] carries the host's bytes. `super::nccl::Nccl` and `super::mpi::Mpi` differ only in gradients, which they
/// carry from GPU to GPU and over MPI.
pub trait Collective: Send {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// The transport of gradients, for people.
    fn describe(&self) -> String {
        "TCP".into()
    }

    /// Sends a message to a rank.
    ///
    /// # Errors
    /// If the connection to that rank is lost.
    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError>;

    /// Receives the next message of a rank, of at most `max` bytes.
    ///
    /// # Errors
    /// If that rank is lost or silent, stops, or sends a message of another kind or a longer one.
    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError>;

    /// Sends `outgoing[s]`, message by message, to every rank s, and passes the messages of every rank s to `each`, which must
    /// have the lengths `incoming[s]`. The order is that of the ranks, whenever messages arrive. A rank's messages to itself are
    /// passed as well.
    ///
    /// # Errors
    /// As [`Collective::send`] and [`Collective::receive`], and the errors of `each`.
    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError>;

    /// Connects the ranks' engines, after every rank has opened its own.
    ///
    /// # Errors
    /// If the ranks' devices cannot reach each other.
    fn connect(&mut self, _engine: &mut dyn Engine) -> Result<(), TrainError> {
        Ok(())
    }

    /// The network between engines' tensors, if this is one: then gradients go over it and not over [`Collective::all_to_all`].
    fn devices(&mut self) -> Option<&mut dyn Devices> {
        None
    }

    /// Tells the other ranks, if they can still be reached, why this rank stops. Returns true if rank 0 was told.
    fn abort(&mut self, why: &str) -> bool;
}

/// A range of bytes of a tensor of F32 elements.
#[derive(Clone)]
pub struct ShardPart<'t> {
    /// The tensor.
    pub tensor: &'t Tensor,
    /// The range in the tensor's canonical bytes.
    pub bytes: Range<usize>,
}

/// A network between tensors of the ranks' engines.
pub trait Devices {
    /// A tensor with any contents, to receive into.
    ///
    /// # Errors
    /// If the device has no room for it.
    fn blank(&self, engine: &mut dyn Engine, ty: &TensorType) -> Result<Tensor, EngineError>;

    /// Sends the bytes of `outgoing[s]` to every rank s, and stores those of every rank s in `incoming[s]`: parts of the same
    /// sizes in the same order. All bytes are there on return. A rank's bytes for itself are copied as well.
    ///
    /// # Errors
    /// If a rank is lost, or the device or the library fails.
    fn exchange(
        &mut self,
        engine: &mut dyn Engine,
        outgoing: &[Vec<ShardPart>],
        incoming: &[Vec<ShardPart>],
    ) -> Result<(), TrainError>;
}

/// Tells the other ranks of an error before this rank stops. Returns true if rank 0 was told.
pub fn report(collective: &mut dyn Collective, error: &TrainError) -> bool {
    match error {
        // Another rank's message is passed on unchanged.
        TrainError::Rank(RankError::Stopped { why, .. }) => collective.abort(why),
        other => collective.abort(&other.to_string()),
    }
}
