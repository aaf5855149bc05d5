//! Fields that came when there were runs already, and whose default is not what was done before.

use super::fields::Config;
use super::rules::RULES;
use super::{Field, Stage};

/// Name of the field, and the text of the value that says what was done before it was there.
const LATER: &[(&str, &str)] = &[("foreign_ids", "false")];

/// The fields, and what they were before.
pub(super) fn later_fields() -> impl Iterator<Item = (&'static Field, &'static str)> {
    LATER.iter().filter_map(|(name, before)| super::field(name).map(|field| (field, *before)))
}

/// Of such a field, whether something else is done in `stage` than before it was there; `None` of all others.
pub fn does_new(field: &Field, config: &Config, stage: Option<Stage>) -> Option<bool> {
    let (_, before) = LATER.iter().find(|(name, _)| *name == field.name)?;
    let is_read =
        |stage| RULES.iter().filter(|rule| rule.fields.contains(&field.name)).all(|rule| (rule.is_read)(config, stage));
    Some((field.show)(config) != *before && stage.is_some_and(is_read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelKind;

    #[test]
    fn they_are_fields_and_count_where_they_are_read() {
        assert_eq!(later_fields().count(), LATER.len(), "one of {LATER:?} is no field");
        let field = crate::config::field("foreign_ids").unwrap();
        let mut config = Config::default();
        assert_eq!(does_new(field, &config, Some(Stage::Autoencoder)), Some(false), "a vgae has no list");
        config.model.model = ModelKind::Gat;
        assert_eq!(does_new(field, &config, Some(Stage::Normal)), Some(true));
        assert_eq!(does_new(field, &config, Some(Stage::Fusion)), Some(false));
        assert_eq!(does_new(field, &config, None), Some(false));
        config.model.foreign_ids = false;
        assert_eq!(does_new(field, &config, Some(Stage::Normal)), Some(false));
        assert_eq!(does_new(crate::config::field("lr").unwrap(), &config, Some(Stage::Normal)), None);
    }
}
