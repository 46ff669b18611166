//! What ranks need of a network: messages between two of them, and the exchange in which everyone sends to everyone.

use super::super::TrainError;

/// What a message is. A message of another kind than the one that is waited for is an error of whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
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
}

/// A network between ranks. Every rank calls the same methods in the same order; bytes between two ranks arrive whole and in
/// order, or not at all.
///
/// [`super::tcp::Tcp`] carries the host's bytes. One over NCCL would keep the messages between two ranks there and do
/// [`Collective::all_to_all`] on device memory: for every rank an `ncclSend` of the shard's bytes (`ncclUint8`) of each partial sum and
/// an `ncclRecv` into a tensor of the shard's size, all between `ncclGroupStart` and `ncclGroupEnd`, over a communicator whose id
/// rank 0 makes (`ncclGetUniqueId`) and sends with `Peers`. Reduction operations of NCCL are of no use: its float sums follow the ring.
/// What changes with it is [`super::reduce`], the only caller, which then hands over device tensors where it now copies to the host.
pub trait Collective {
    fn rank(&self) -> u32;

    fn ranks(&self) -> u32;

    fn send(&mut self, to: u32, kind: Kind, bytes: &[u8]) -> Result<(), TrainError>;

    /// The next message of a rank, of at most `max` bytes.
    fn receive(&mut self, from: u32, kind: Kind, max: u64) -> Result<Vec<u8>, TrainError>;

    /// Sends `outgoing[s]`, message by message, to every rank s, and shows what every rank s sends, which must have the lengths
    /// `incoming[s]`: in the order of ranks, whenever it arrived. What a rank sends to itself it sees like the rest.
    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError>;

    /// Tells the others, as far as they can still be told, why this rank stops. Returns whether rank 0 knows.
    fn abort(&mut self, why: &str) -> bool;
}
