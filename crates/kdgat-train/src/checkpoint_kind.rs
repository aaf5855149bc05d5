//! What a checkpoint holds: told by its metadata, so that an error can say what was given and what is wanted.

use std::fmt;

use kdgat_nn::ModelDescription;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::state::Position;

/// The metadata of one kind of checkpoint.
pub trait Content: DeserializeOwned {
    /// The kind that it is written into.
    const KIND: Kind;
}

impl Content for ModelDescription {
    const KIND: Kind = Kind::Model;
}

impl Content for Position {
    const KIND: Kind = Kind::RunState;
}

/// The kinds of checkpoints, shown as in "this is …".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A trained autoencoder or classifier.
    Model,
    /// A trained agent of the fusion.
    Agent,
    /// Where a training run is.
    RunState,
    /// Difficulties of graphs.
    Scores,
    /// Example graphs of an export.
    Examples,
    /// None of them.
    Unknown,
}

impl Kind {
    /// By names that the metadata of one kind has and that of no other.
    pub fn of(metadata: &Value) -> Self {
        let names = [
            (Self::Model, "vocabulary"),
            (Self::Agent, "fusion"),
            (Self::RunState, "identity"),
            (Self::Scores, "model_digest"),
            (Self::Examples, "weights_digest"),
        ];
        names.into_iter().find(|(_, name)| metadata.get(name).is_some()).map_or(Self::Unknown, |(kind, _)| kind)
    }

    /// What to give where this kind is wanted.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Model => "name a vgae or gat: the folder of its run, or the best.safetensors in it",
            Self::Agent => "name an agent: the folder of a run of `kdgat fusion`, or the best.safetensors in it",
            Self::RunState => "start the run anew, without --resume",
            Self::Scores => "delete it: difficulties are scored again",
            Self::Examples | Self::Unknown => "name another file",
        }
    }

    /// What to do about a damaged file of this kind.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Model | Self::Agent => "copy it anew from where it came from, or train it again",
            Self::Examples => "export the model again",
            Self::RunState | Self::Scores | Self::Unknown => self.advice(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Model => "a model (vgae or gat)",
            Self::Agent => "an agent of `kdgat fusion`",
            Self::RunState => "the state of a training run",
            Self::Scores => "a file of difficulties",
            Self::Examples => "a file of examples",
            Self::Unknown => "a checkpoint of a kind that this program does not know",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_holds_is_told_from_its_metadata() {
        let position = serde_json::to_value(Position::default()).unwrap();
        assert_eq!(Kind::of(&position), Kind::RunState);
        assert_eq!(Kind::of(&serde_json::json!({ "vocabulary": [1], "fusion": "no" })), Kind::Model);
        assert_eq!(Kind::of(&serde_json::json!({ "epoch": 1 })), Kind::Unknown);
    }
}
