//! README of an exported folder.

use kdgat_nn::Architecture;

use crate::files::precision_name;
use crate::{CarModel, CarPartner};

/// The README's text. `weight_bytes` and `most_operations` as in [`CarFiles`](crate::CarFiles).
pub fn write(model: &CarModel, weight_bytes: usize, most_operations: usize) -> String {
    let description = model.description;
    let input = description.architecture.input();
    let (what, meaning) = match description.architecture {
        _ if model.partner.is_some() => (
            "classifier (GAT)",
            "the mean of both models' scores, each in spreads above what was usual in the training data",
        ),
        Architecture::Gat(_) => ("classifier (GAT)", "the probability of an attack, 0 to 1"),
        _ => {
            ("autoencoder (VGAE)", "the difficulty of the window, from 0: its reconstruction error and that of its IDs")
        }
    };
    let loss = description.val_loss.map_or(String::new(), |loss| format!(" (validation loss {loss:.4})"));
    let teacher = description
        .teacher_digest
        .as_ref()
        .map_or(String::new(), |digest| format!("| teacher's weights | {} |\n", digest.get(..12).unwrap_or(digest)));
    format!(
        "# Intrusion detector for a CAN bus\n\
         \n\
         C99 source code of a trained detector, written by kdgat {version}. Feed every frame of the bus to `kdgat_push`; after each \
         {stride} frames it returns a verdict about the last {window}. [kdgat_car.h](kdgat_car.h) documents the interface, its units and \
         limits.\n\
         \n\
         ```c\n\
         #include \"kdgat_car.h\"\n\
         \n\
         static kdgat_state detector;   /* all memory that it uses */\n\
         \n\
         kdgat_result result;\n\
         kdgat_init(&detector);\n\
         while (read_frame(&frame)) {{\n\
         \x20   if (kdgat_push(&detector, &frame, &result) && result.attack) {{\n\
         \x20       /* result.time, result.score, result.id[0] */\n\
         \x20   }}\n\
         }}\n\
         ```\n\
         \n\
         ## The model\n\
         \n\
         | | |\n\
         |---|---|\n\
         | run | {name} |\n\
         | trained on | {dataset}, epoch {epoch}{loss} |\n\
         | kind | {size} {what} with {features} features |\n\
         | score | {meaning}; an attack if above {threshold} ({method}) |\n\
         | windows | {window} frames, one each {stride} frames |\n\
         | known IDs | {ids} |\n\
         | weights | {digest}, {precision} |\n\
         {teacher}\
         {partner}\
         | constants of the network | {weight_bytes} bytes |\n\
         | multiply-accumulates of a window | at most {most_operations} (all {window} frames with different IDs) |\n\
         \n\
         The scores are those of `kdgat evaluate` and `kdgat detect` with the same weights, to 1e-5 (relative; to a millionth of the log odds where these are beyond ±10). How well the model \
         recognises attacks stands in the results of `kdgat evaluate`; a detector recognises what its training data had, on that \
         car; {calibration}\n\
         \n\
         ## Build and test\n\
         \n\
         ```sh\n\
         make test                # or: cmake -B build && cmake --build build && ctest --test-dir build\n\
         make size\n\
         ```\n\
         \n\
         The test feeds recorded frames to the detector and compares its results with the trainer's. The sources need a C99 compiler \
         with IEEE 754 arithmetic, `<stdint.h>`, `<stddef.h>`, `<string.h>` and `<math.h>`, and no memory allocation, file or thread.\n\
         \n\
         [example/](example/README.md) is a program for Linux around the detector: it reads `candump -L` or a CAN interface, prints the lines \
         of `kdgat detect`, raises alarms, and runs as a systemd service.\n",
        partner = model.partner.as_ref().map_or(String::new(), partner_rows),
        calibration = if model.partner.is_some() {
            "two models together have no calibration for another one in C."
        } else {
            "a calibration moves it to another one."
        },
        version = env!("CARGO_PKG_VERSION"),
        stride = model.stride,
        window = description.window,
        name = model.name,
        dataset = description.dataset.name,
        epoch = description.epoch + 1,
        size = description.size,
        features = input.features(),
        threshold = model.threshold,
        method = model.threshold_method,
        ids = description.vocabulary.len().saturating_sub(1),
        digest = model.weights_digest.get(..12).unwrap_or(&model.weights_digest),
        precision = precision_name(model.precision),
    )
}

/// Rows about the autoencoder of a pair.
fn partner_rows(partner: &CarPartner) -> String {
    let CarPartner { name, description, weights_digest, classifier_scale, autoencoder_scale, .. } = partner;
    format!(
        "| judges together with | {name}: {} autoencoder (VGAE), trained on {}, epoch {} |\n\
         | its weights | {} |\n\
         | usual log odds of the classifier | median {}, spread {} |\n\
         | usual log difficulty of the autoencoder | median {}, spread {} |\n",
        description.size,
        description.dataset.name,
        description.epoch + 1,
        weights_digest.get(..12).unwrap_or(weights_digest),
        classifier_scale.median,
        classifier_scale.spread,
        autoencoder_scale.median,
        autoencoder_scale.spread,
    )
}
