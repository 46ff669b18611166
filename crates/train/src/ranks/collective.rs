//! What ranks need of a network: messages between two of them, and the exchange in which everyone sends to everyone.

use std::ops::Range;

use crate::error::{RankError, TrainError};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::{Engine, EngineError, Tensor};

/// How gradients go between ranks; everything else goes over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// Through the hosts' memory.
    Tcp = 0,
    /// From GPU to GPU, by NVIDIA's NCCL.
    Nccl = 1,
}

/// What a message is. A message of another kind than the one that is waited for is an error of whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// Of a transport: whoever connects says for whom.
    Hello = 1,
    /// Of a transport: rank 0 says where the others are.
    Peers = 2,
    /// Rank 0: the run's identity and job.
    Welcome = 3,
    /// Rank 0: a tensor of the state to begin with.
    State = 4,
    /// To rank 0: which run, program and state the sender then has.
    Ready = 5,
    /// Rank 0: a step, or the end.
    Step = 6,
    /// Rank 0: the micro-batches that the receiver computes.
    Batch = 7,
    /// All to all: gradients.
    Gradient = 8,
    /// To rank 0: what the sender's part of the step came to.
    Share = 9,
    /// The sender stops, and why.
    Abort = 10,
    /// Of NCCL's transport: to rank 0, the sender's GPU and library; back, how all meet.
    Meet = 11,
    /// Of NCCL's transport, all to all: the sender is there, with its part of an exchange.
    Here = 12,
}

/// A network between ranks. Every rank calls the same methods in the same order; bytes between two ranks arrive whole and in
/// order, or not at all.
///
/// [`super::tcp::Tcp`] carries the host's bytes. `super::nccl::Nccl` is the same but for gradients, which it carries from GPU to GPU.
pub trait Collective {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn ranks(&self) -> u32;

    /// What gradients go over, for people.
    fn describe(&self) -> String {
        "TCP".into()
    }

    /// Sends a message to a rank.
    ///
    /// # Errors
    /// If the connection to that rank is lost.
    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError>;

    /// The next message of a rank, of at most `max` bytes.
    ///
    /// # Errors
    /// If that rank is lost or silent, stops, or sends a message of another kind or a longer one.
    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError>;

    /// Sends `outgoing[s]`, message by message, to every rank s, and shows what every rank s sends, which must have the lengths
    /// `incoming[s]`: in the order of ranks, whenever it arrived. What a rank sends to itself it sees like the rest.
    ///
    /// # Errors
    /// As [`Collective::send`] and [`Collective::receive`], and those of `each`.
    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError>;

    /// Makes ready what takes an engine, when every rank has opened its own.
    ///
    /// # Errors
    /// If the ranks' devices cannot reach each other.
    fn connect(&mut self, _engine: &mut dyn Engine) -> Result<(), TrainError> {
        Ok(())
    }

    /// The network as one between engines' tensors, if it is: gradients then go by it and not by [`Collective::all_to_all`].
    fn devices(&mut self) -> Option<&mut dyn Devices> {
        None
    }

    /// Tells the others, as far as they can still be told, why this rank stops. Returns whether rank 0 knows.
    fn abort(&mut self, why: &str) -> bool;
}

/// Bytes of a tensor of F32 elements.
#[derive(Clone)]
pub struct ShardPart<'t> {
    /// The tensor.
    pub tensor: &'t Tensor,
    /// The part's bytes of the tensor's canonical bytes.
    pub bytes: Range<usize>,
}

/// A network between the tensors of ranks' engines.
pub trait Devices {
    /// A tensor with any contents, to be received.
    ///
    /// # Errors
    /// If the device has no room for it.
    fn blank(&self, engine: &mut dyn Engine, ty: &TensorType) -> Result<Tensor, EngineError>;

    /// Sends the bytes of `outgoing[s]` to every rank s, and puts what every rank s sends in `incoming[s]`: parts of the same sizes in the
    /// same order. The bytes are there when it returns. What a rank sends to itself it receives like the rest.
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

/// Tells the others of an error before this rank stops. Returns whether rank 0 knows.
pub fn report(collective: &mut dyn Collective, error: &TrainError) -> bool {
    match error {
        // What another rank said is passed on as it was said.
        TrainError::Rank(RankError::Stopped { why, .. }) => collective.abort(why),
        other => collective.abort(&other.to_string()),
    }
}
