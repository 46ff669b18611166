//! The disk that a run will take.

use tiebreak_contract::program::logged::traced;
use tiebreak_contract::program::step::state_bytes;
use tiebreak_job::Granularity;
use tiebreak_run::run::dir::Run;

/// An estimate of the bytes that a run will take on disk, checkpoints, traces and rounding logs included.
pub fn disk_needed(run: &Run) -> u64 {
    let state = state_bytes(&run.program().state());
    let all = u64::from(run.job().steps / run.job().checkpoint.every) + 2;
    let checkpoints = run.job().checkpoint.keep.map_or(all, |keep| all.min(u64::from(keep) + 2));
    let data: u64 = run.file.data.iter().map(|f| f.bytes).sum();
    let records = u64::from(run.job().steps) * (256 + 32 * u64::from(run.program().micro_batches));
    let traces = match run.job().commit.granularity {
        Granularity::Operator => trace_bytes(run) * u64::from(run.job().steps),
        Granularity::Step | Granularity::Microbatch => 0,
    };
    // Fitting thresholds log about a hundredth of the values, in about eight bits each.
    let values: u64 = run.program().micro.logged.iter().map(|product| product.elements() as u64).sum();
    let logs = values / 100 * u64::from(run.program().micro_batches) * u64::from(run.job().steps);
    checkpoints * state + state / 3 + data + records + traces + logs
}

/// Bytes of one step's trace file.
fn trace_bytes(run: &Run) -> u64 {
    let graph_bytes = |graph: &tiebreak_contract::program::graph::Graph| -> u64 {
        let node_bytes = |n: &tiebreak_contract::program::graph::Node| {
            36 + 32 * tiebreak_record::commit::tensor::tile_count(graph.tensor(n.output).bytes()) as u64
        };
        let held = traced(graph).into_iter();
        graph.nodes.iter().zip(held).filter(|(_, held)| *held).map(|(node, _)| node_bytes(node)).sum()
    };
    let micro_batches = u64::from(run.program().micro_batches);
    micro_batches * graph_bytes(&run.program().micro)
        + (micro_batches - 1) * graph_bytes(&run.program().accumulate)
        + graph_bytes(&run.program().update)
}
