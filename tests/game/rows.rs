//! Games about the tokens and rows of a receipt.

use tiebreak_audit::answers::Accuser;
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::inference::replay::Difference;

use crate::receipts::{Model, honestly, play};

/// The receipt has made-up tokens, the honest passes over them, and a root that no rows have. No trace is at hand: there is no
/// evidence about the token, and nobody loses the game, since it never reads the root.
#[test]
fn other_rows_over_honest_passes_are_not_in_the_game() {
    let model = Model::small();
    let text = model.signed(model.receipt.traces.unwrap());
    let (answerer, mut cpu) = (model.answerer(), Cpu::new(1).unwrap());
    let found = answerer.difference(&mut cpu, &model.receipt, 0..14, &mut |_| {}).unwrap().unwrap();
    assert!(matches!(found, Difference::Token { number: 0, .. }), "{found:?}");
    let receipt = (&model.receipt, &text[..]);
    let accuser = Accuser {
        answerer: &answerer,
        job: &model.text,
        receipt,
        tokenizer: None,
        opening: None,
        trace: None,
    };
    assert_eq!(accuser.verdict(&mut cpu, &found).unwrap(), None);
    let terms = model.terms(text.clone());
    let mut parties = [0, 1].map(|number| model.party(&terms, number, None));
    let game = play(&terms, &mut parties, &honestly, None);
    assert_eq!((game.result.losses().count(), &game.result.remaining[..]), (0, &[0, 1][..]));
}
