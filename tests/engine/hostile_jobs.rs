//! A job file is hostile input too: verdicts and runs carry one. Every job that passes validation can be built, whatever its
//! numbers are, without a panic.

use proptest::prelude::*;
use tiebreak_job::Job;
use tiebreak_record::commit::trace::leaf_count;

/// Every magnitude is equally likely.
fn number(bits: u32) -> impl Strategy<Value = u32> {
    (0..=bits, any::<u32>()).prop_map(|(bits, word)| match bits {
        0 => word & 1,
        bits => 1 << (bits - 1) | (word & ((1 << (bits - 1)) - 1)),
    })
}

const REST: &str = r#"
steps = 9
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-3 }
"#;

fn digits() -> impl Strategy<Value = String> {
    let classes = ["linear", "linear_dx", "linear_dw", "head", "head_dx", "head_dw", "scores", "scores_dq"]
        .into_iter()
        .chain(["scores_dk", "values", "values_dp", "values_dv"])
        .collect::<Vec<_>>();
    let class = (prop::sample::select(classes), prop::sample::select(vec![0u32, 64, 128, 4096, 1 << 31]));
    let rounding =
        prop::sample::select(vec!["", "[rounding]\n", "[rounding]\nbits = 28\n", "[rounding]\nbits = 32\n"]);
    (prop::collection::vec(class, 0..4), rounding).prop_map(|(classes, rounding)| {
        let table =
            |(class, block)| format!("[digits.class.{class}]\ndigits_a = 4\ndigits_b = 4\nblock = {block}\n");
        let distinct: std::collections::BTreeMap<_, _> = classes.into_iter().collect();
        distinct.into_iter().map(table).chain([rounding.to_string()]).collect()
    })
}

fn builds(job: &str) {
    if let Ok(job) = Job::parse("job", job) {
        let program = job.program(None).unwrap();
        assert!(leaf_count(&program) > 0);
        for graph in [&program.micro, &program.accumulate, &program.update] {
            for ty in &graph.tensors {
                let elements: u64 = ty.shape.iter().map(|&d| u64::from(d)).product();
                assert!(elements <= u64::from(u32::MAX), "{:?}", ty.shape);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoders_that_parse_can_be_built(
        sizes in (number(21), number(17), 1u32..4, 0u32..5, number(12)),
        batch in (number(24), number(17)),
        digits in digits(),
    ) {
        let (vocabulary, context, layers, heads, part) = sizes;
        let (micro_batch, micro_batches) = batch;
        let (heads, width) = (1 << heads, (1u64 << heads) * u64::from(part));
        builds(&format!(
            "{REST}batch = {{ micro_batch = {micro_batch}, micro_batches = {micro_batches} }}\n\
             data = {{ kind = \"bytes\", path = \"t\" }}\n\
             model = {{ kind = \"gpt\", vocabulary = {vocabulary}, context = {context}, layers = {layers}, \
             heads = {heads}, width = {width}, dropout = 0.5, tied = {} }}\n{digits}",
            part % 2 == 0
        ));
    }

    #[test]
    fn perceptrons_that_parse_can_be_built(
        sizes in (number(21), prop::collection::vec(number(21), 0..4), number(21)),
        batch in (number(24), number(17)),
        digits in digits(),
    ) {
        let (inputs, hidden, classes) = sizes;
        let (micro_batch, micro_batches) = batch;
        builds(&format!(
            "{REST}batch = {{ micro_batch = {micro_batch}, micro_batches = {micro_batches} }}\n\
             data = {{ kind = \"cifar10\", path = \"t\" }}\n\
             model = {{ kind = \"mlp\", inputs = {inputs}, hidden = {hidden:?}, classes = {classes}, dropout = 0.5 }}\n\
             {digits}"
        ));
    }
}
