//! `docs/configuration.md`, generated from the table of fields and the presets.

use std::fmt::Write;

use super::Config;
use super::fields::SECTIONS;
use super::presets::BUILT_IN;
use super::table::{Field, running_text};
use super::values::Choice;

const OPENING: &str = "\
# Configuration

<!-- Made by `kdgat config --reference`; a test compares the two. -->

Every field below can be set in six places. Later places override earlier ones:

1. the default built into the program;
2. presets, such as `--preset vgae,student,quick`, merged left to right: a model, one of its sizes, then any overlays. An
   overlay may have fields for one size of a model, in a table such as `[size-of-gat.teacher]`, and a model other fields of a size for
   a dataset of graphs (`[size-on-graphs.teacher]`) or one large graph (`[size-on-nodes.teacher]`). kdgat looks for presets in
   `presets/` in the working directory, then in the program itself;
3. `kdgat.toml` in the working directory;
4. environment variables: `KDGAT_LR` sets `lr` (exception: if `KDGAT_DATA` names the parent folder of datasets, it sets no field);
5. the file given by `--config`: TOML, or the `config.json` of a run, which repeats that run;
6. flags: `--lr` sets `lr`, `--max-epochs` sets `max_epochs`.

`kdgat config`, with any of these, prints the merged configuration and the origin of each value.

In a TOML file, put a field into the table of its section or at the top of the file:

```toml
lr = 0.001

[distillation]
use_kd = true
kd_alpha = 0.5
```

Write booleans as `--use-kd`, `--use-kd true` or `--use-kd false`, and lists with commas: `--hidden 80,40,16`. Sizes have a unit, such
as `6GiB` (1024³) or `512MB` (1000²); without one they are bytes. Where `none` is a valid value, it cancels the value of an earlier
place. Paths are relative to the working directory.

An unknown field, preset or value is an error; the message names its place and the nearest valid name. Flags that the command would
ignore and contradicting values are refused, too, and all problems are reported together. Presets, files and variables may set fields
that only other commands read. `kdgat memory plan` accepts the flags of the training that it plans, `kdgat teachers cache` those of the
student's training, and `kdgat config` all flags.
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
    // Enumerations: each value with its meaning.
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

/// Escapes bars, which would end a table's column.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}
