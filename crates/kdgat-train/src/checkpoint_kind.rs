//! Kinds of checkpoints, recognised by their metadata, so that errors can name the kind found and the kind wanted.

use std::fmt;

use kdgat_nn::ModelDescription;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::state::Position;

/// Metadata type of one kind of checkpoint.
pub trait Content: DeserializeOwned {
    /// The kind of checkpoint with this metadata.
    const KIND: Kind;
}

impl Content for ModelDescription {
    const KIND: Kind = Kind::Model;
}

impl Content for Position {
    const KIND: Kind = Kind::RunState;
}

/// Kinds of checkpoints; their `Display` completes "is …".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A trained autoencoder or classifier.
    Model,
    /// A trained fusion agent.
    Agent,
    /// State of a training run.
    RunState,
    /// Difficulty scores of graphs.
    Scores,
    /// Example graphs of an exported model.
    Examples,
    /// None of the above.
    Unknown,
}

impl Kind {
    /// Recognises the kind by a field that only its metadata has.
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

    /// Advice on what to pass when this kind is wanted.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Model => "name a vgae or gat: the folder of its run, or the best.safetensors in it",
            Self::Agent => "name an agent: the folder of a run of `kdgat fusion`, or the best.safetensors in it",
            Self::RunState => "start the run again, without --resume",
            Self::Scores => "delete it, and difficulties are scored again",
            Self::Examples | Self::Unknown => "name another file",
        }
    }

    /// Advice for a damaged file of this kind.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Model | Self::Agent => "copy it again from where it came from, or train it again",
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
            Self::Unknown => "a checkpoint of an unknown kind",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_recognised_by_the_metadata() {
        let position = serde_json::to_value(Position::default()).unwrap();
        assert_eq!(Kind::of(&position), Kind::RunState);
        assert_eq!(Kind::of(&serde_json::json!({ "vocabulary": [1], "fusion": "no" })), Kind::Model);
        assert_eq!(Kind::of(&serde_json::json!({ "epoch": 1 })), Kind::Unknown);
    }
}
