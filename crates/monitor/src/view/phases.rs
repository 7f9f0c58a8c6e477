//! Where the time of a step goes, as a bar of letters.

use everburn_record::RankStep;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

/// A part of a step: its letter, its name and its colour.
pub(super) struct Part {
    pub(super) letter: char,
    pub(super) name: &'static str,
    colour: Color,
    seconds: fn(&RankStep) -> f64,
}

pub(super) const PARTS: [Part; 6] = [
    Part {
        letter: 'd',
        name: "data",
        colour: Color::Magenta,
        seconds: |step| step.data,
    },
    Part {
        letter: 'f',
        name: "forward",
        colour: Color::Green,
        seconds: |step| step.forward,
    },
    Part {
        letter: 'b',
        name: "backward",
        colour: Color::Blue,
        seconds: |step| step.backward,
    },
    Part {
        letter: 'x',
        name: "exposed communication",
        colour: Color::Red,
        seconds: |step| step.exposed,
    },
    Part {
        letter: 'o',
        name: "optimizer",
        colour: Color::Cyan,
        seconds: |step| step.optimizer,
    },
    Part {
        letter: 'w',
        name: "waiting",
        colour: Color::Yellow,
        seconds: |step| step.waited - step.exposed,
    },
];

/// What is none of the parts: checkpoints, records, the dashboard.
const OTHER: char = '.';

/// A bar of `width` letters, as long as the step.
pub(super) fn bar(step: &RankStep, width: u16) -> Line<'static> {
    let total = step.seconds.max(f64::MIN_POSITIVE);
    let width = f64::from(width);
    // Ends are rounded, not lengths: the bar is as long as it should be.
    let (mut passed, mut drawn) = (0.0, 0.0);
    let mut spans = Vec::new();
    for part in &PARTS {
        passed += (part.seconds)(step).max(0.0);
        let end = (width * passed / total).round().min(width);
        let letters = part.letter.to_string().repeat((end - drawn) as usize);
        spans.push(Span::styled(letters, Style::new().fg(part.colour)));
        drawn = end;
    }
    let others = OTHER.to_string().repeat((width - drawn) as usize);
    spans.push(Span::styled(others, Style::new().fg(Color::DarkGray)));
    Line::from(spans)
}

/// What the letters mean.
pub(super) fn legend() -> Line<'static> {
    let mut spans = vec![Span::raw(" ")];
    for part in &PARTS {
        let colour = Style::new().fg(part.colour);
        spans.push(Span::styled(part.letter.to_string(), colour));
        spans.push(Span::raw(format!(" {}  ", part.name)));
    }
    spans.push(Span::raw(format!("{OTHER} other ")));
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_step() {
        let step = RankStep {
            seconds: 1.0,
            waited: 0.3,
            exposed: 0.1,
            forward: 0.2,
            backward: 0.4,
            ..RankStep::default()
        };
        assert_eq!(bar(&step, 10).to_string(), "ffbbbbxww.");
        let too_much = RankStep {
            seconds: 0.1,
            ..step
        };
        assert_eq!(bar(&too_much, 4).to_string(), "ffff");
        assert_eq!(bar(&RankStep::default(), 3).to_string(), "...");
    }
}
