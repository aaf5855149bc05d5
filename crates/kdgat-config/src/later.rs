//! Fields added after 0.1, with the value that older runs imply.

use super::fields::Config;
use super::rules::rules;
use super::{Field, Stage};

/// Name of the field, and the value (as text) that older runs imply.
const LATER: &[(&str, &str)] = &[("foreign_ids", "false"), ("synthetic_attacks", "false"), ("validation", "blocks")];

/// The fields, each with the value that older runs imply.
pub(super) fn later_fields() -> impl Iterator<Item = (&'static Field, &'static str)> {
    LATER.iter().filter_map(|(name, before)| super::field(name).map(|field| (field, *before)))
}

/// The value that older runs imply for a later field whose default is another one. `None` for all other fields.
pub(super) fn before_its_default(field: &Field) -> Option<&'static str> {
    let (_, before) = LATER.iter().find(|(name, _)| *name == field.name)?;
    ((field.show)(&Config::default()) != *before).then_some(before)
}

/// For a later field with a new default: true if its value makes `stage` behave differently from older runs. `None` for all other
/// fields.
pub fn does_new(field: &Field, config: &Config, stage: Option<Stage>) -> Option<bool> {
    let before = before_its_default(field)?;
    let is_read =
        |stage| rules().filter(|rule| rule.fields.contains(&field.name)).all(|rule| (rule.is_read)(config, stage));
    Some((field.show)(config) != before && stage.is_some_and(is_read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelKind;

    #[test]
    fn later_fields_exist_and_count_only_in_stages_that_read_them() {
        assert_eq!(later_fields().count(), LATER.len(), "one of {LATER:?} is not a field");
        let field = crate::field("foreign_ids").unwrap();
        let mut config = Config::default();
        assert_eq!(does_new(field, &config, Some(Stage::Autoencoder)), Some(false), "a vgae has no list of known IDs");
        config.model.model = ModelKind::Gat;
        assert_eq!(does_new(field, &config, Some(Stage::Classifier)), Some(true));
        assert_eq!(does_new(field, &config, Some(Stage::Fusion)), Some(false));
        assert_eq!(does_new(field, &config, None), Some(false));
        config.model.foreign_ids = false;
        assert_eq!(does_new(field, &config, Some(Stage::Classifier)), Some(false));
        // Without synthetic attacks, the default, runs do what older runs did.
        for name in ["lr", "synthetic_attacks"] {
            assert_eq!(does_new(crate::field(name).unwrap(), &config, Some(Stage::Classifier)), None);
        }
    }
}
