//! `--shuffle-block` changes the order, reproducibly.

use support::cli::{SMALL_STUDENT, Workplace, loss_columns};

#[test]
fn a_block_shuffle_changes_the_order_and_is_the_same_each_time() {
    let workplace = Workplace::new();
    let losses = |folder: &str, more: &[&str]| {
        let settings =
            ["--max-epochs", "2", "--use-kd", "false", "--batch-size", "16", "--optimize-batch-size", "false"];
        workplace.success(&[&["autoencoder"], SMALL_STUDENT, &settings, &["--run-dir", folder], more].concat());
        loss_columns(&workplace.path().join(folder))
    };
    let any_order = losses("any", &[]);
    let blocks = ["--shuffle-block", "8", "--shuffle-buffer", "32"];
    let in_blocks = losses("blocks", &blocks);
    assert_ne!(any_order, in_blocks);
    assert_eq!(in_blocks, losses("again", &blocks));
    assert_eq!(any_order.len(), in_blocks.len());
}
