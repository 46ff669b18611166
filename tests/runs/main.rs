//! Runs on disk: their data and initial states, training that is killed or shared, their format, and the results of audits and
//! verdicts.

mod answers_together;
mod audit;
mod batch_norm;
#[allow(dead_code, reason = "tests of engines read logits; tests here read answers")]
#[path = "../common/cached.rs"]
mod cached_decoders;
mod caches;
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod computations;
mod crash;
mod data;
mod data_elsewhere;
mod device_check;
mod divided_slots;
mod documents;
mod fast_audits;
mod frozen;
mod in_order;
mod initial_states;
mod jobs;
mod masked_tokens;
mod masks;
mod native_kernels;
mod network_files;
mod padding;
mod paper_preset;
mod prediction_verdicts;
mod predictions;
mod publish;
mod ranks_in_buckets;
mod ranks_in_process;
mod real_data;
mod receipt_tiles;
mod receipt_verdicts;
mod receipts;
mod recompute;
mod record_verdicts;
mod remote;
mod rounding_verdicts;
mod run_format;
mod sequences;
mod sliding;
mod stores;
#[path = "../common/together.rs"]
mod together;
mod verdicts;
mod vision;
mod withdraw;
