//! Constants of the C code that turns frames into the graph of a window, and of a car's calibration.

use kdgat_graph::CarProfile;
use kdgat_graph::profile::{ByteProfile, IdProfile, Place, Relation, SignalRange};
use kdgat_nn::Architecture;

use crate::text::{double, float};
use crate::{CText, CarError, CarModel};

/// Largest number of vocabulary rows: rows are counted in 16 bits.
const MOST_ROWS: usize = 1 << 16;
/// Longest window: nodes, edges and positions are counted in 16 bits, and the frame after the window counts.
const LONGEST_WINDOW: usize = u16::MAX as usize - 1;

/// Appends the constants of windows, features and calibration: `#define`s to `config` (kdgat_config.h), arrays to `tables`
/// (kdgat_tables.c).
///
/// # Errors
/// Fails if the C code does not support the model's features, window or vocabulary.
pub fn write(model: &CarModel, config: &mut CText, tables: &mut CText) -> Result<(), CarError> {
    let description = model.description;
    let input = description.architecture.input();
    let unsupported = |what: String| Err(CarError::Unsupported(format!("{}: {what}", model.name)));
    if !(2..=LONGEST_WINDOW).contains(&description.window) || model.stride == 0 || model.stride > u32::MAX as usize {
        return unsupported(format!(
            "windows of {} frames, {} frames apart; export as C supports 2 to {LONGEST_WINDOW} frames",
            description.window, model.stride
        ));
    }
    let vocabulary = &description.vocabulary;
    if vocabulary.len() > MOST_ROWS {
        return unsupported(format!("{} known IDs; export as C supports {}", vocabulary.len() - 1, MOST_ROWS - 1));
    }
    config.define("KDGAT_VOCABULARY", format!("{}u", vocabulary.len()));
    tables.integers("uint32_t", "kdgat_vocabulary", vocabulary.ids().iter().map(|&id| i64::from(id)));
    if let Some(scaling) = &input.node_scaling {
        config.line("extern const float kdgat_node_mean[KDGAT_NODE_COLUMNS];");
        config.line("extern const float kdgat_node_deviation[KDGAT_NODE_COLUMNS];");
        tables.floats("kdgat_node_mean", &scaling.mean);
        tables.floats("kdgat_node_deviation", &scaling.deviation);
    }
    if let Some(profile) = &input.profile {
        write_profile(profile, config, tables);
        if let Some(score) = model.least_score {
            config.define("KDGAT_LEAST_SCORE", double(score));
        }
    }
    // Only classifiers use a list of known IDs.
    let list = description.foreign_ids.filter(|_| matches!(description.architecture, Architecture::Gat(_)));
    config.define("KDGAT_ID_LIST", u8::from(list.is_some()));
    if let Some(counted) = list {
        config.define("KDGAT_FOREIGN_EVIDENCE", float(counted.evidence() as f32));
        config.define("KDGAT_FOREIGN_OF_ATTACKS", double(counted.of_attacks));
    }
    config.define("KDGAT_CALIBRATION_RATE", double(model.calibration_rate));
    Ok(())
}

/// Appends the model's own profile, for models of the profile set.
fn write_profile(profile: &CarProfile, config: &mut CText, tables: &mut CText) {
    config.define("KDGAT_PROFILE_IDS", format!("{}u", profile.ids().len()));
    config.define("KDGAT_NEW_ID_SURPRISE", float(profile.new_id_surprise()));
    tables.line("const kdgat_usual kdgat_profile_ids[] = {");
    for id in profile.ids() {
        let numbers = [
            id.gaps as f32,
            id.gap_low_seconds,
            id.gap_median_seconds,
            id.gap_mean_seconds,
            id.gap_high_seconds,
            id.known_seconds(),
            id.longest_silence_seconds,
            id.repeats,
            id.returns,
            id.changed_bytes,
        ];
        let of_bytes = |value: fn(&ByteProfile) -> u8| listed(id.bytes.iter().map(value));
        let seen =
            id.bytes.iter().map(|byte| format!("{{{}}}", listed(byte.seen.iter().flat_map(|word| word.to_le_bytes()))));
        tables.line(&format!(
            "    {{{}u, {}, {{{}}}, {{{}}}, {}u, {}u,\n     {{{}}}}},",
            id.can_id,
            numbers.map(float).join(", "),
            of_bytes(|byte| byte.change_high),
            of_bytes(|byte| byte.change_most),
            id.longest_standstill,
            repeating_bytes(id),
            seen.collect::<Vec<_>>().join(",\n      "),
        ));
    }
    if profile.ids().is_empty() {
        // C99 has no empty arrays.
        tables.line("    {0},");
    }
    tables.line("};");
    write_relations(profile.relations(), config, tables);
}

/// Appends the relations of the model's own profile.
fn write_relations(relations: &[Relation], config: &mut CText, tables: &mut CText) {
    config.define("KDGAT_RELATIONS", format!("{}u", relations.len()));
    let place = |place: Place| format!("{{{}u, {}u}}", place.high.unwrap_or(u8::MAX), place.low);
    let mut first_partner = 0;
    tables.line("const kdgat_relation kdgat_relations[] = {");
    for relation in relations {
        let partners = relation.partners.len();
        let numbers = [relation.range.least, relation.range.most, relation.usual].map(float).join(", ");
        tables.line(&format!(
            "    {{{}u, {}, {partners}u, {first_partner}u, {numbers}}},",
            relation.can_id,
            place(relation.place)
        ));
        first_partner += partners;
    }
    if relations.is_empty() {
        tables.line("    {0},");
    }
    tables.line("};");
    tables.line("const kdgat_partner kdgat_partners[] = {");
    for partner in relations.iter().flat_map(|relation| &relation.partners) {
        let SignalRange { least, most } = partner.range;
        let numbers = [least, most, partner.slope, partner.offset, partner.error].map(float).join(", ");
        tables.line(&format!("    {{{}u, {}, {numbers}}},", partner.can_id, place(partner.place)));
    }
    if relations.is_empty() {
        tables.line("    {0},");
    }
    tables.line("};");
}

/// Bit `n` is set if byte `n` repeated its value; the others changed in every frame.
pub(crate) fn repeating_bytes(id: &IdProfile) -> u8 {
    id.bytes.iter().enumerate().fold(0, |bits, (at, byte)| bits | u8::from(byte.repeats) << at)
}

fn listed(values: impl Iterator<Item = u8>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

/// C files of this part, by name.
pub const FILES: &[(&str, &str)] = &[
    ("kdgat_window.h", include_str!("../../c/kdgat_window.h")),
    ("kdgat_window.c", include_str!("../../c/kdgat_window.c")),
    ("kdgat_features.c", include_str!("../../c/kdgat_features.c")),
    ("kdgat_history.h", include_str!("../../c/kdgat_history.h")),
    ("kdgat_history.c", include_str!("../../c/kdgat_history.c")),
    ("kdgat_gone.h", include_str!("../../c/kdgat_gone.h")),
    ("kdgat_gone.c", include_str!("../../c/kdgat_gone.c")),
    ("kdgat_profile.h", include_str!("../../c/kdgat_profile.h")),
    ("kdgat_profile.c", include_str!("../../c/kdgat_profile.c")),
    ("kdgat_relations.c", include_str!("../../c/kdgat_relations.c")),
    ("kdgat_rich.c", include_str!("../../c/kdgat_rich.c")),
    ("kdgat_calibration.h", include_str!("../../c/kdgat_calibration.h")),
    ("kdgat_calibration.c", include_str!("../../c/kdgat_calibration.c")),
];

/// C files of a calibration for another car, by name.
pub const CALIBRATION_FILES: &[(&str, &str)] = &[
    ("kdgat_calibrate.h", include_str!("../../c/kdgat_calibrate.h")),
    ("kdgat_calibrate.c", include_str!("../../c/kdgat_calibrate.c")),
    ("kdgat_learn.h", include_str!("../../c/kdgat_learn.h")),
    ("kdgat_learn.c", include_str!("../../c/kdgat_learn.c")),
    ("kdgat_saved.c", include_str!("../../c/kdgat_saved.c")),
];
