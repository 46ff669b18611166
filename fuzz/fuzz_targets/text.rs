//! Texts: head notes, keys, jobs, auditors' reports, plans and notes of draws, reports of evaluations, receipts of answers
//! and predictions, configurations of released models. A text that parses is in the canonical form.
#![no_main]

use tiebreak_audit::drawn::Drawn;
use tiebreak_audit::plan_file::PlanFile;
use tiebreak_audit::report_file::decode;
use tiebreak_job::Job;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::evaluate::Report;
use tiebreak_run::run::index::Index;
use tiebreak_run::run::released_config;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok((head, _)) = Head::from_note(text, None) {
        assert!(text.starts_with(head.to_note(None).as_str()));
    }
    if let Ok(key) = PublicKey::from_text(text) {
        assert_eq!(key.to_text(), text.trim_end());
    }
    if let Ok(key) = PrivateKey::from_text(text) {
        assert_eq!(key.to_text(), text.trim_end());
    }
    let _ = Job::parse("job.toml", text);
    let _ = decode(text.as_bytes());
    if let Ok(drawn) = Drawn::from_text(text) {
        assert_eq!(Drawn::from_text(&drawn.to_text()), Ok(drawn));
    }
    if let Ok(index) = Index::from_text(text.to_string()) {
        assert_eq!(index.text(), text);
    }
    if let Ok(plan) = PlanFile::from_text(text) {
        assert!(PlanFile::from_text(&plan.to_text()).is_ok());
    }
    if let Ok(report) = Report::parse(text) {
        let again = Report::parse(&report.text()).unwrap();
        assert_eq!(Report { found: report.found.clone(), ..again }, report);
    }
    if let Ok((receipt, None)) = Receipt::from_text(text) {
        assert_eq!(receipt.to_text(None), text);
    }
    let _ = salted_receipt::read(text, Some(text));
    if let Ok((receipt, None)) = Predictions::from_text(text) {
        assert_eq!(receipt.to_text(None), text);
    }
    let _ = released_config::parse(text, Some(64));
    if let Ok(model) = released_config::parse(text, None)
        && model.error().is_none()
    {
        assert!(released_config::parse(&released_config::text(&model, None, None), None).is_ok());
    }
});
