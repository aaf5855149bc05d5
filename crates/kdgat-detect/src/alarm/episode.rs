//! Episodes of alarms from the verdicts of windows; the [module](super) defines the rules.

use std::collections::VecDeque;

use super::event::{Alarm, AlarmChange, AlarmEnd, Cause, Changed, Ending, Event};
use super::{Clock, Severity, SeverityScale};
use crate::{Detection, NamedCulprit};

/// Different IDs kept for an episode.
pub const MOST_TRACKED: usize = 32;
/// IDs listed in an event.
pub const MOST_LISTED: usize = 5;

/// Windows among which other culprits are counted, or [`AlarmRule::among`] if that is more, and attack windows among them that have to name an
/// ID, or [`AlarmRule::needed`]: the ID that weighs most in a window of a false alarm is often another one in the next.
const CULPRITS_AMONG: usize = 5;
const CULPRITS_NEEDED: usize = 3;

/// Rule for begin and end of an episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlarmRule {
    /// Attack windows that raise an alarm, at least 1.
    pub needed: usize,
    /// Last windows among which they are counted, at least `needed`.
    pub among: usize,
    /// Windows without an attack in a row that end the episode, at least 1.
    pub clear: u64,
    /// Seconds after the end of an alarm in which no other begins, unless it is more severe or names other IDs.
    pub cooldown_seconds: f64,
}

/// The verdict on a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Number of the window.
    pub window: u64,
    /// Time of its first frame, in seconds.
    pub time: f64,
    /// True if the window was called an attack.
    pub attack: bool,
    /// The model's score, on the scale of its kind.
    pub score: f64,
    /// Spreads above what is usual for the car; `None` without a calibration.
    pub deviations: Option<f64>,
    /// Severity, if it is an attack.
    pub severity: Severity,
    /// IDs that the window names, if it is an attack.
    pub culprits: Vec<NamedCulprit>,
    /// IDs that are gone since this window: it raises an alarm alone, also in a cooldown.
    pub gone: Vec<String>,
}

impl Verdict {
    /// The verdict of a detection, with its severity on this scale.
    pub fn new(detection: Detection, scale: &SeverityScale) -> Self {
        let attack = detection.is_attack();
        let severity = if attack { scale.grade(&detection) } else { Severity::Low };
        let Detection { window, time, score, deviations, id, mut culprits, gone, .. } = detection;
        if attack && culprits.is_empty() {
            culprits.push(NamedCulprit { id, unusual: Vec::new() });
        }
        Self { window, time, attack, score, deviations, severity, culprits, gone }
    }
}

/// The state machine of episodes.
#[derive(Debug)]
pub struct Alarms {
    rule: AlarmRule,
    clock: Clock,
    /// Windows seen.
    windows: u64,
    /// Time of the last window.
    last_time: f64,
    /// Attack windows among the last [`AlarmRule::among`] or [`CULPRITS_AMONG`], whichever is more.
    recent: VecDeque<Attack>,
    state: State,
    /// Severity and IDs of the last alarm, which later attacks are compared with.
    told: Told,
    /// Clock at the end of the last alarm.
    ended_at: Option<f64>,
    raised: u64,
    suppressed: u64,
    /// Alarms suppressed before the last one was raised.
    suppressed_before: u64,
}

/// Severity and IDs that the events of an alarm have named.
#[derive(Debug, Default)]
struct Told {
    severity: Severity,
    /// At most [`MOST_TRACKED`].
    ids: Vec<String>,
}

impl Told {
    fn add_ids<'a>(&mut self, ids: impl IntoIterator<Item = &'a String>) {
        for id in ids {
            if self.ids.len() < MOST_TRACKED && !self.ids.contains(id) {
                self.ids.push(id.clone());
            }
        }
    }
}

#[derive(Debug)]
enum State {
    Quiet,
    Alarm(Episode),
    /// An episode within the cooldown.
    Suppressed {
        /// Windows without an attack since its last attack window.
        quiet: u64,
    },
}

/// An attack window with its position among all windows, from 1, and the clock at it.
#[derive(Debug)]
struct Attack {
    position: u64,
    clock: f64,
    verdict: Verdict,
}

/// An open episode.
#[derive(Debug)]
struct Episode {
    /// Position and clock of the first attack window.
    position: u64,
    clock: f64,
    /// Windows without an attack since the last attack window.
    quiet: u64,
    merged: Merged,
}

impl Alarms {
    /// Creates the machine in its quiet state.
    pub fn new(rule: AlarmRule) -> Self {
        let rule = AlarmRule { needed: rule.needed.max(1), clear: rule.clear.max(1), ..rule };
        Self {
            rule,
            clock: Clock::default(),
            windows: 0,
            last_time: f64::NAN,
            recent: VecDeque::new(),
            state: State::Quiet,
            told: Told::default(),
            ended_at: None,
            raised: 0,
            suppressed: 0,
            suppressed_before: 0,
        }
    }

    /// Takes the verdict on the next window; returns the event that it causes.
    pub fn push(&mut self, verdict: Verdict) -> Option<Event> {
        self.windows += 1;
        self.last_time = verdict.time;
        let clock = self.clock.advance(verdict.time);
        match &mut self.state {
            State::Alarm(episode) if !verdict.attack => {
                episode.quiet += 1;
                if episode.quiet < self.rule.clear { None } else { self.end(Ending::Clear) }
            }
            State::Suppressed { quiet } if !verdict.attack => {
                *quiet += 1;
                if *quiet >= self.rule.clear {
                    self.suppressed += 1;
                    self.recent.clear();
                    self.state = State::Quiet;
                }
                None
            }
            State::Quiet if !verdict.attack => None,
            State::Quiet | State::Suppressed { .. } | State::Alarm(_) => self.attack(clock, verdict),
        }
    }

    /// Ends the stream: an open episode ends, a suppressed one is counted.
    pub fn finish(&mut self) -> Option<Event> {
        match self.state {
            State::Alarm(_) => self.end(Ending::End),
            State::Suppressed { .. } => {
                self.suppressed += 1;
                self.state = State::Quiet;
                None
            }
            State::Quiet => None,
        }
    }

    /// Windows seen.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Alarms raised.
    pub fn raised(&self) -> u64 {
        self.raised
    }

    /// Alarms suppressed by the cooldown.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Takes an attack window.
    fn attack(&mut self, clock: f64, verdict: Verdict) -> Option<Event> {
        let oldest = self.oldest_of(self.rule.among.max(CULPRITS_AMONG));
        while self.recent.front().is_some_and(|attack| attack.position < oldest) {
            self.recent.pop_front();
        }
        if let State::Alarm(episode) = &mut self.state {
            episode.quiet = 0;
            episode.merged.add(&verdict);
            self.recent.push_back(Attack { position: self.windows, clock, verdict });
            return self.change();
        }
        let is_gone = !verdict.gone.is_empty();
        self.recent.push_back(Attack { position: self.windows, clock, verdict });
        if is_gone {
            return self.raise();
        }
        let is_enough = self.raising().count() >= self.rule.needed;
        let is_cooling = self.ended_at.is_some_and(|end| clock - end < self.rule.cooldown_seconds);
        if is_enough && (!is_cooling || self.news().is_some()) {
            return self.raise();
        }
        match &mut self.state {
            State::Suppressed { quiet } => *quiet = 0,
            _ if is_enough => self.state = State::Suppressed { quiet: 0 },
            _ => {}
        }
        None
    }

    /// Position of the first of the last `among` windows.
    fn oldest_of(&self, among: usize) -> u64 {
        (self.windows + 1).saturating_sub(among as u64)
    }

    /// Attack windows among the last [`AlarmRule::among`].
    fn raising(&self) -> impl Iterator<Item = &Attack> {
        let oldest = self.oldest_of(self.rule.among);
        self.recent.iter().filter(move |attack| attack.position >= oldest)
    }

    /// Returns what recent attacks agree on and the events of the last alarm have not said.
    fn news(&self) -> Option<Changed> {
        if self.recent.back().is_some_and(|attack| !attack.verdict.gone.is_empty()) {
            return Some(Changed::Gone);
        }
        let severer = self.raising().filter(|attack| attack.verdict.severity > self.told.severity).count();
        if severer >= self.rule.needed {
            return Some(Changed::Severity);
        }
        let has_room = self.told.ids.len() < MOST_TRACKED;
        (has_room && self.agreed_ids().any(|id| !self.told.ids.contains(id))).then_some(Changed::Culprits)
    }

    /// IDs that enough recent attacks name; an ID may come several times.
    fn agreed_ids(&self) -> impl Iterator<Item = &String> {
        let needed = self.rule.needed.max(CULPRITS_NEEDED);
        let names = |attack: &Attack, id: &String| attack.verdict.culprits.iter().any(|named| named.id == *id);
        let all = self.recent.iter().flat_map(|attack| attack.verdict.culprits.iter().map(|named| &named.id));
        all.filter(move |id| self.recent.iter().filter(|attack| names(attack, id)).count() >= needed)
    }

    /// Reports news in an open episode.
    fn change(&mut self) -> Option<Event> {
        let changed = self.news()?;
        let State::Alarm(episode) = &self.state else { return None };
        let &Verdict { window, time, score, deviations, ref gone, .. } = &self.recent.back()?.verdict;
        let gone = gone.clone();
        let mut recent = Merged::default();
        self.recent.iter().for_each(|attack| recent.add(&attack.verdict));
        let (severity, attack_windows) = (episode.merged.severity, episode.merged.attack_windows);
        let agreed: Vec<String> = self.agreed_ids().cloned().collect();
        self.told.add_ids(agreed.iter().chain(&gone));
        self.told.severity = severity;
        Some(Event::AlarmChange(AlarmChange {
            alarm: self.raised,
            time,
            window,
            score,
            deviations,
            severity,
            attack_windows,
            culprits: recent.causes(),
            changed,
            gone,
        }))
    }

    /// Begins an episode with the recent attacks.
    fn raise(&mut self) -> Option<Event> {
        let (first, last) = (self.raising().next()?, self.recent.back()?);
        let (position, clock, since) = (first.position, first.clock, first.verdict.time);
        let &Verdict { window, time, score, deviations, ref gone, .. } = &last.verdict;
        let gone = gone.clone();
        let mut merged = Merged::default();
        self.raising().for_each(|attack| merged.add(&attack.verdict));
        self.raised += 1;
        self.told = Told { severity: merged.severity, ids: Vec::new() };
        self.told.add_ids(merged.causes.iter().map(|tracked| &tracked.cause.id));
        let suppressed = self.suppressed - std::mem::replace(&mut self.suppressed_before, self.suppressed);
        let event = Event::Alarm(Alarm {
            alarm: self.raised,
            time,
            since,
            window,
            score,
            deviations,
            severity: merged.severity,
            attack_windows: merged.attack_windows,
            suppressed,
            culprits: merged.causes(),
            gone,
        });
        self.state = State::Alarm(Episode { position, clock, quiet: 0, merged });
        Some(event)
    }

    /// Ends the open episode.
    fn end(&mut self, ended_by: Ending) -> Option<Event> {
        let State::Alarm(episode) = std::mem::replace(&mut self.state, State::Quiet) else { return None };
        let clock = self.clock.seconds();
        let culprits = episode.merged.causes();
        self.ended_at = Some(clock);
        self.recent.clear();
        self.told.severity = episode.merged.severity;
        self.told.add_ids(culprits.iter().map(|cause| &cause.id));
        Some(Event::AlarmEnd(AlarmEnd {
            alarm: self.raised,
            time: self.last_time,
            duration_seconds: clock - episode.clock,
            windows: self.windows + 1 - episode.position,
            attack_windows: episode.merged.attack_windows,
            highest_score: episode.merged.score,
            highest_deviations: episode.merged.deviations,
            severity: episode.merged.severity,
            culprits,
            ended_by,
        }))
    }
}

/// Attack windows of an episode, merged.
#[derive(Debug)]
struct Merged {
    attack_windows: u64,
    /// Highest score; NaN before the first window.
    score: f64,
    deviations: Option<f64>,
    severity: Severity,
    /// Named IDs, in the order in which they were first named.
    causes: Vec<Tracked>,
}

/// A named ID, and the highest score of the windows that name it.
#[derive(Debug)]
struct Tracked {
    cause: Cause,
    score: f64,
}

impl Default for Merged {
    fn default() -> Self {
        Self { attack_windows: 0, score: f64::NAN, deviations: None, severity: Severity::Low, causes: Vec::new() }
    }
}

impl Merged {
    fn add(&mut self, verdict: &Verdict) {
        let &Verdict { score, deviations, severity, ref culprits, .. } = verdict;
        self.attack_windows += 1;
        // `max` of NaN and a number is the number.
        self.score = self.score.max(score);
        self.deviations = deviations.map(|value| self.deviations.map_or(value, |highest| highest.max(value)));
        self.severity = self.severity.max(severity);
        for NamedCulprit { id, unusual } in culprits {
            let is_full = self.causes.len() >= MOST_TRACKED;
            match self.causes.iter_mut().find(|tracked| tracked.cause.id == *id) {
                Some(tracked) => {
                    tracked.cause.windows += 1;
                    if score > tracked.score {
                        (tracked.score, tracked.cause.unusual) = (score, unusual.clone());
                    }
                }
                None if !is_full => {
                    let cause = Cause { id: id.clone(), windows: 1, unusual: unusual.clone() };
                    self.causes.push(Tracked { cause, score });
                }
                None => {}
            }
        }
    }

    /// The IDs named by most windows.
    fn causes(&self) -> Vec<Cause> {
        let mut order: Vec<&Cause> = self.causes.iter().map(|tracked| &tracked.cause).collect();
        order.sort_by_key(|cause| std::cmp::Reverse(cause.windows));
        order.into_iter().take(MOST_LISTED).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: AlarmRule = AlarmRule { needed: 1, among: 1, clear: 2, cooldown_seconds: 0.0 };

    fn verdict(window: u64, time: f64, attack: bool) -> Verdict {
        let culprits =
            if attack { vec![NamedCulprit { id: "123".to_owned(), unusual: Vec::new() }] } else { Vec::new() };
        let score = if attack { 0.9 } else { 0.1 };
        let (deviations, gone) = (None, Vec::new());
        Verdict { window, time, attack, score, deviations, severity: Severity::Low, culprits, gone }
    }

    /// Events of windows a quarter of a second apart, `A` an attack: `+` a begin, `-` an end by clearing, at the window of the event;
    /// `$` an end by the end of the stream. Then the number of suppressed alarms.
    fn drawn(rule: AlarmRule, text: &str) -> (String, u64) {
        let mut alarms = Alarms::new(rule);
        let mut drawn = String::new();
        for (window, letter) in text.chars().enumerate() {
            drawn.push(match alarms.push(verdict(window as u64, 0.25 * window as f64, letter == 'A')) {
                Some(Event::Alarm(_)) => '+',
                Some(Event::AlarmEnd(_)) => '-',
                Some(other) => panic!("{other:?}"),
                None => '.',
            });
        }
        if alarms.finish().is_some() {
            drawn.push('$');
        }
        (drawn, alarms.suppressed())
    }

    #[test]
    fn an_episode_begins_with_k_of_n_and_ends_when_clear() {
        for (needed, among, text, expected) in [
            (1, 1, "..AA.A..A.", "..+....-+.$"),
            (2, 2, "..A.AA....", ".....+.-.."),
            (2, 3, "A..A.A..AA", ".....+.-.+$"),
        ] {
            let rule = AlarmRule { needed, among, ..RULE };
            assert_eq!(drawn(rule, text), (expected.to_owned(), 0), "{needed}/{among}");
        }
    }

    #[test]
    fn attacks_before_an_end_do_not_count_towards_the_next_alarm() {
        let rule = AlarmRule { needed: 3, among: 10, ..RULE };
        assert_eq!(drawn(rule, "AAA..A....AA"), ("..+.-......+$".to_owned(), 0));
    }

    #[test]
    fn the_cooldown_suppresses_short_alarms_and_delays_long_ones() {
        let rule = AlarmRule { cooldown_seconds: 2.0, ..RULE };
        // The first alarm ends at 0.5 s; the second, at 1 s, is over before 2.5 s.
        assert_eq!(drawn(rule, "A...A.......A"), ("+.-.........+$".to_owned(), 1));
        assert_eq!(drawn(rule, "A..AAAAAAAAA.."), ("+.-.......+..-".to_owned(), 0), "raised when the cooldown is over");
        assert_eq!(drawn(rule, "A..A"), ("+.-.".to_owned(), 1), "the end of the stream");
        let forever = AlarmRule { cooldown_seconds: 1e9, ..RULE };
        assert_eq!(drawn(forever, "A..A..A..A.A"), ("+.-.........".to_owned(), 3));
    }

    fn named(id: &str, reason: &str) -> NamedCulprit {
        NamedCulprit { id: id.to_owned(), unusual: vec![reason.to_owned()] }
    }

    #[test]
    fn events_have_the_figures_of_their_windows() {
        let mut alarms = Alarms::new(AlarmRule { needed: 2, among: 3, ..RULE });
        let first = Verdict {
            score: 0.8,
            deviations: Some(7.0),
            severity: Severity::High,
            culprits: vec![named("002", "early"), named("7DF", "new")],
            ..verdict(10, 100.0, true)
        };
        assert_eq!(alarms.push(first), None);
        assert_eq!(alarms.push(verdict(11, 100.25, false)), None);
        let second = Verdict {
            score: 0.9,
            deviations: Some(4.0),
            severity: Severity::Low,
            culprits: vec![named("7DF", "often")],
            ..verdict(12, 100.5, true)
        };
        let begin = alarms.push(second).unwrap();
        assert_eq!(
            serde_json::to_string(&begin).unwrap(),
            concat!(
                r#"{"event":"alarm","alarm":1,"time":100.5,"since":100.0,"window":12,"score":0.9,"deviations":4.0,"#,
                r#""severity":"high","attack_windows":2,"suppressed":0,"culprits":[{"id":"7DF","windows":2,"unusual":["often"]},"#,
                r#"{"id":"002","windows":1,"unusual":["early"]}]}"#
            )
        );
        assert_eq!(alarms.push(verdict(13, 100.75, false)), None);
        let end = alarms.push(verdict(14, 101.0, false)).unwrap();
        assert_eq!(
            serde_json::to_string(&end).unwrap(),
            concat!(
                r#"{"event":"alarm-end","alarm":1,"time":101.0,"duration_seconds":1.0,"windows":5,"attack_windows":2,"#,
                r#""highest_score":0.9,"highest_deviations":7.0,"severity":"high","culprits":["#,
                r#"{"id":"7DF","windows":2,"unusual":["often"]},{"id":"002","windows":1,"unusual":["early"]}],"ended_by":"clear"}"#
            )
        );
        assert_eq!(alarms.finish(), None);
    }

    /// Events of windows a quarter of a second apart: `.` no attack; `l`, `m`, `h` an attack of low, medium or high severity that names 123,
    /// capitals one that names 456. `+` a begin, `s` and `c` a change of severity and of culprits, `-` an end.
    fn drawn_with_news(rule: AlarmRule, text: &str) -> (String, u64) {
        let mut alarms = Alarms::new(rule);
        let mut drawn = String::new();
        for (window, letter) in text.chars().enumerate() {
            let severity = match letter.to_ascii_lowercase() {
                'm' => Severity::Medium,
                'h' => Severity::High,
                _ => Severity::Low,
            };
            let id = if letter.is_ascii_uppercase() { "456" } else { "123" };
            let mut next = verdict(window as u64, 0.25 * window as f64, letter != '.');
            next.severity = severity;
            next.culprits.iter_mut().for_each(|named| named.id = id.to_owned());
            next.gone.extend((letter == 'x').then(|| id.to_owned()));
            drawn.push(match alarms.push(next) {
                Some(Event::Alarm(_)) => '+',
                Some(Event::AlarmChange(AlarmChange { changed: Changed::Gone, .. })) => 'g',
                Some(Event::AlarmChange(AlarmChange { changed: Changed::Severity, .. })) => 's',
                Some(Event::AlarmChange(AlarmChange { changed: Changed::Culprits, .. })) => 'c',
                Some(Event::AlarmEnd(_)) => '-',
                Some(other) => panic!("{other:?}"),
                None => '.',
            });
        }
        alarms.finish();
        (drawn, alarms.suppressed())
    }

    #[test]
    fn a_more_severe_attack_or_one_with_other_culprits_breaks_the_cooldown() {
        let rule = AlarmRule { cooldown_seconds: 100.0, ..RULE };
        assert_eq!(drawn_with_news(rule, "l..l...h.."), ("+.-....+.-".to_owned(), 1), "more severe");
        assert_eq!(drawn_with_news(rule, "h..l...LLL.."), ("+.-......+.-".to_owned(), 1), "other culprits");
        assert_eq!(drawn_with_news(rule, "l..lL.L.."), ("+.-......".to_owned(), 1), "two windows name other culprits");
        assert_eq!(drawn_with_news(rule, "lLLL..l.L..h"), ("+..c.-.....+".to_owned(), 1), "both IDs were named");
        // As many windows as raise an alarm have to agree.
        let rule = AlarmRule { needed: 2, among: 3, ..rule };
        assert_eq!(drawn_with_news(rule, "ll..lh..lhh.."), (".+.-......+.-".to_owned(), 1));
        assert_eq!(drawn_with_news(rule, "ll..LLL.."), (".+.-..+.-".to_owned(), 0));
    }

    /// One window is enough to say that an ID is gone, whatever the rule, the cooldown, and what was said before.
    #[test]
    fn an_id_that_is_gone_raises_an_alarm_at_once() {
        let rule = AlarmRule { needed: 3, among: 5, cooldown_seconds: 100.0, ..RULE };
        assert_eq!(drawn_with_news(rule, "..x......x.."), ("..+.-....+.-".to_owned(), 0));
        assert_eq!(drawn_with_news(rule, "lll..lll..x.."), ("..+.-.....+.-".to_owned(), 1), "in the cooldown");
        assert_eq!(drawn_with_news(rule, "lllxlxl..."), ("..+g.g..-.".to_owned(), 0), "in an open alarm");
        let mut alarms = Alarms::new(rule);
        let gone = Verdict { gone: vec!["148".to_owned()], ..verdict(0, 1.0, true) };
        let text = serde_json::to_string(&alarms.push(gone.clone()).unwrap()).unwrap();
        assert!(text.ends_with(r#""culprits":[{"id":"123","windows":1}],"gone":["148"]}"#), "{text}");
        let text = serde_json::to_string(&alarms.push(gone).unwrap()).unwrap();
        assert!(text.ends_with(r#"],"changed":"gone","gone":["148"]}"#), "{text}");
    }

    #[test]
    fn an_open_alarm_reports_once_that_it_has_become_more_severe_or_names_other_ids() {
        assert_eq!(drawn_with_news(RULE, "llmmhhLLLhL.."), ("+.s.s...c...-".to_owned(), 0));
        let rule = AlarmRule { needed: 2, among: 4, ..RULE };
        assert_eq!(drawn_with_news(rule, "lllhllhhLlLL.."), (".+....s....c.-".to_owned(), 0));
    }

    #[test]
    fn an_alarm_counts_the_suppressed_ones_before_it() {
        let mut alarms = Alarms::new(AlarmRule { cooldown_seconds: 2.0, ..RULE });
        let mut suppressed = Vec::new();
        for (window, letter) in "A..A..A........A..".chars().enumerate() {
            if let Some(Event::Alarm(alarm)) = alarms.push(verdict(window as u64, 0.25 * window as f64, letter == 'A'))
            {
                suppressed.push(alarm.suppressed);
            }
        }
        assert_eq!(suppressed, [0, 2]);
    }

    #[test]
    fn an_episode_keeps_a_limited_number_of_ids() {
        let mut alarms = Alarms::new(RULE);
        let ids = (0..200).chain([150, 3, 3, 7]);
        for (window, id) in ids.enumerate() {
            let culprits = vec![NamedCulprit { id: format!("{id:03X}"), unusual: Vec::new() }];
            alarms.push(Verdict { culprits, ..verdict(window as u64, window as f64, true) });
        }
        let Some(Event::AlarmEnd(end)) = alarms.finish() else { panic!("an alarm is open") };
        let found: Vec<(&str, u64)> = end.culprits.iter().map(|cause| (cause.id.as_str(), cause.windows)).collect();
        assert_eq!(found, [("003", 3), ("007", 2), ("000", 1), ("001", 1), ("002", 1)]);
        assert_eq!((end.attack_windows, end.ended_by), (204, Ending::End));
    }

    #[test]
    fn bad_times_have_defined_results() {
        let rule = AlarmRule { cooldown_seconds: 5.0, ..RULE };
        let mut alarms = Alarms::new(rule);
        let mut events = Vec::new();
        let times = [9e9, f64::NAN, f64::INFINITY, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        for (window, time) in times.into_iter().enumerate() {
            // The alarm ends at the third window; the clock is 5 s later at time 6.
            events.extend(alarms.push(verdict(window as u64, time, window == 0 || window > 2)));
        }
        let found: Vec<(&str, Option<f64>)> = events.iter().map(|event| (event.name(), event.time())).collect();
        assert_eq!(found, [("alarm", Some(9e9)), ("alarm-end", Some(f64::INFINITY)), ("alarm", Some(6.0))]);
    }

    fn rules() -> impl Strategy<Value = AlarmRule> {
        (1usize..5, 0usize..5, 1u64..4, prop::sample::select(vec![0.0, 0.3, 2.0])).prop_map(
            |(needed, more, clear, cooldown_seconds)| AlarmRule {
                needed,
                among: needed + more,
                clear,
                cooldown_seconds,
            },
        )
    }

    proptest! {
        #[test]
        fn begins_and_ends_alternate_outside_the_cooldown(
            rule in rules(),
            windows in prop::collection::vec((any::<bool>(), -0.2f64..0.5), 0..200),
        ) {
            let mut alarms = Alarms::new(rule);
            let (mut clock, mut time) = (Clock::default(), 0.0);
            let (mut open, mut begun, mut ended_at) = (false, 0u64, None::<f64>);
            for (window, (attack, step)) in windows.iter().enumerate() {
                time += step;
                let now = clock.advance(time);
                match alarms.push(verdict(window as u64, time, *attack)) {
                    Some(Event::Alarm(alarm)) => {
                        begun += 1;
                        prop_assert!(!open && *attack && alarm.alarm == begun);
                        prop_assert!(ended_at.is_none_or(|end| now - end >= rule.cooldown_seconds));
                        // The rule holds for the windows themselves.
                        let last = &windows[(window + 1).saturating_sub(rule.among)..=window];
                        prop_assert!(last.iter().filter(|(attack, _)| *attack).count() >= rule.needed);
                        prop_assert!(alarm.attack_windows >= rule.needed as u64);
                        open = true;
                    }
                    Some(Event::AlarmEnd(end)) => {
                        let quiet = &windows[window + 1 - rule.clear as usize..=window];
                        prop_assert!(open && quiet.iter().all(|(attack, _)| !attack) && end.alarm == begun);
                        prop_assert!(end.windows >= end.attack_windows + rule.clear && end.duration_seconds >= 0.0);
                        (open, ended_at) = (false, Some(now));
                    }
                    Some(other) => prop_assert!(false, "{other:?}"),
                    None => {}
                }
            }
            prop_assert_eq!(alarms.finish().is_some(), open);
            prop_assert!(alarms.finish().is_none());
            prop_assert_eq!((alarms.raised(), alarms.windows()), (begun, windows.len() as u64));
            if rule.cooldown_seconds == 0.0 {
                prop_assert_eq!(alarms.suppressed(), 0);
            }
        }

        /// With 1/1 and no cooldown, each attack window belongs to exactly one episode.
        #[test]
        fn every_attack_window_is_in_an_episode(clear in 1u64..5, attacks in prop::collection::vec(any::<bool>(), 0..200)) {
            let mut alarms = Alarms::new(AlarmRule { clear, ..RULE });
            let windows = attacks.iter().enumerate();
            let mut events: Vec<Event> =
                windows.filter_map(|(at, attack)| alarms.push(verdict(at as u64, at as f64, *attack))).collect();
            events.extend(alarms.finish());
            let counted: u64 = events
                .iter()
                .map(|event| if let Event::AlarmEnd(end) = event { end.attack_windows } else { 0 })
                .sum();
            prop_assert_eq!(counted, attacks.iter().filter(|attack| **attack).count() as u64);
        }
    }
}
