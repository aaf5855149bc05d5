//! `docs/configuration.md`, made from the table of fields and the presets.

use std::fmt::Write;

use super::Config;
use super::fields::SECTIONS;
use super::presets::BUILT_IN;
use super::table::{Field, running_text};
use super::values::Choice;

const OPENING: &str = "\
# Configuration

<!-- Made by `kdgat config --reference`; a test compares the two. -->

Every field below can be set in six places. Later ones win:

1. the default built into the program;
2. presets, named by `--preset vgae,student,quick` and merged left to right: a model, a size of it, then any overlays.
   They are looked for in `presets/` of the working directory, then in the program itself;
3. `kdgat.toml` of the working directory;
4. environment variables: `lr` is `KDGAT_LR` (but `KDGAT_DATA` sets no field where it is the folder that holds datasets by name);
5. the file that `--config` names: TOML, or the `config.json` of a run, which repeats that run;
6. flags: `lr` is `--lr`, `max_epochs` is `--max-epochs`.

`kdgat config` (with any of these) prints the merged result and where each value came from.

In a TOML file a field stands in the table of its section or at the top of the file, as you like:

```toml
lr = 0.001

[distillation]
use_kd = true
kd_alpha = 0.5
```

Booleans are given as `--use-kd`, `--use-kd true` or `--use-kd false`. Lists are separated by commas: `--hidden 80,40,16`.
Sizes have a unit, `6GiB` (1024³) or `512MB` (1000²), or are bytes. Where `none` is a value, it takes back what an earlier place set.
Paths are relative to the working directory.

An unknown field, preset or value is an error that names the nearest valid one and the place where it was written. A flag that the
command would ignore, or a combination that contradicts itself, is refused; all problems are shown together. Presets, files and
variables may set what other commands read. `kdgat memory plan` takes the flags of the training that it plans, `kdgat teachers cache`
those of the student's model, `kdgat config` all.
";

/// The reference of all fields and presets, in Markdown.
pub fn reference() -> String {
    let defaults = Config::default();
    let mut text = OPENING.to_string();
    for section in SECTIONS {
        let _ = write!(text, "\n## {}\n\n{}\n\n", section.name, running_text(section.help));
        text.push_str("| field | default | values | |\n|---|---|---|---|\n");
        for field in section.fields {
            text.push_str(&row(field, &defaults));
        }
    }
    text.push_str("\n## Presets\n");
    for (name, content) in BUILT_IN {
        let _ = write!(text, "\n`presets/{name}.toml`:\n\n```toml\n{}\n```\n", content.trim_end());
    }
    text
}

fn row(field: &Field, defaults: &Config) -> String {
    let alias = field.alias.map(|alias| format!(" Also called `{alias}`.")).unwrap_or_default();
    let limit = field.limit.map(|limit| format!(", {limit}")).unwrap_or_default();
    // The name of each value with what it stands for, in place of names alone.
    let values = match field.kind.choices {
        [] => format!("{}{limit}", field.kind.describe()),
        choices => {
            let one = |choice: &Choice| format!("`{}`: {}", choice.name, escaped(choice.help));
            let none = field.kind.optional.then(|| "`none`".to_owned());
            choices.iter().map(one).chain(none).collect::<Vec<_>>().join("<br>")
        }
    };
    format!("| `{}` | `{}` | {values} | {}{alias} |\n", field.name, (field.show)(defaults), field.help_text())
}

/// Within a table, which ends a column at each bar.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}
