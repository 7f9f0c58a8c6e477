//! What a dashboard paints into a pipe, as a picture.

use std::io::{PipeReader, Read};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget, Wrap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The picture is larger than any screen: a dashboard places each letter by its row and column, so that a change of the
/// terminal's size needs no agreement between the two.
const ROWS: NonZeroU16 = NonZeroU16::new(400).expect("not zero");
const COLUMNS: NonZeroU16 = NonZeroU16::new(1000).expect("not zero");

/// In how many of its first lines a dashboard tells its keys.
const CONTROLS: u16 = 6;

/// The first answer to the question of burn-train's dashboard how to stop, as it is painted.
const QUESTION: &str = "[s] Stop the training.";

/// The answers, and what they do here: of burn-train's words both stop "immediately".
const ANSWERS: [(&str, &str, &str); 3] = [
    (
        "[s] ",
        "Stop after this step.",
        "All ranks finish their step, and the run writes a checkpoint.",
    ),
    (
        "[k] ",
        "Kill all ranks at once.",
        "Steps since the newest checkpoint are lost.",
    ),
    ("[c] ", "Cancel.", "The training continues."),
];

/// With what a dashboard leaves its screen.
const LEAVES: &[u8] = b"\x1b[?1049l";

/// How much of what came last is kept, to find what was said after the end.
const KEPT: usize = 64 << 10;

/// Whoever paints continues sooner than that within a picture, and pauses longer after it.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// After a pause or not, what has come by then is shown.
const LONGEST_PICTURE: Duration = Duration::from_millis(50);

pub(super) struct Painted {
    pipe: PipeReader,
    screen: vt100::Parser,
    /// What came last.
    tail: Vec<u8>,
}

impl Painted {
    pub(super) fn of(pipe: PipeReader) -> Self {
        Self {
            pipe,
            screen: vt100::Parser::new(ROWS, COLUMNS, 0),
            tail: Vec::new(),
        }
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Takes what is there, to the end of the picture that it is a part of; tells whether the screen may be another one by
    /// that.
    pub(super) fn read(&mut self) -> bool {
        let mut bytes = [0; 16 << 10];
        let start = Instant::now();
        let mut news = false;
        loop {
            let count = self.take(&mut bytes);
            news |= shows(&bytes[..count]);
            let ready = &mut [PollFd::from_borrowed_fd(self.pipe.as_fd(), PollFlags::IN)];
            let more = count > 0 && poll(ready, Some(&PAUSE)).is_ok_and(|ready| ready > 0);
            if !more || start.elapsed() > LONGEST_PICTURE {
                return news;
            }
        }
    }

    /// Takes what is there, through `bytes`; 0 if there is nothing any more.
    fn take(&mut self, bytes: &mut [u8]) -> usize {
        let count = self.pipe.read(bytes).unwrap_or(0);
        self.screen.process(&bytes[..count]);
        self.tail.extend(&bytes[..count]);
        if self.tail.len() > 2 * KEPT {
            self.tail.drain(..self.tail.len() - KEPT);
        }
        count
    }

    /// Reads to the end, which has come when nobody can write any more; returns what was said after the dashboard had
    /// left its screen.
    pub(super) fn drain(&mut self) -> Vec<u8> {
        let mut bytes = [0; 16 << 10];
        while self.take(&mut bytes) > 0 {}
        let ends = self
            .tail
            .windows(LEAVES.len())
            .rposition(|part| part == LEAVES);
        match ends {
            Some(place) => self.tail.split_off(place + LEAVES.len()),
            None => Vec::new(),
        }
    }

    /// Draws the picture, as far as it fits, and which key shows the ranks; of who only monitors, also that `q` leaves, and
    /// in the place of the last line's beginning the `news`: which ranks are waited for or in trouble, or how the run has ended.
    pub(super) fn draw(&self, looks_on: bool, news: Option<&str>, area: Rect, buffer: &mut Buffer) {
        let screen = self.screen.screen();
        for row in 0..area.height {
            for column in 0..area.width {
                let Some(cell) = screen.cell(row, column) else {
                    continue;
                };
                if cell.is_wide_continuation() {
                    continue;
                }
                let Some(place) = buffer.cell_mut((area.x + column, area.y + row)) else {
                    continue;
                };
                let contents = cell.contents();
                place.set_symbol(if contents.is_empty() { " " } else { contents });
                place.set_style(style(cell));
            }
        }
        let hint = match looks_on {
            true => " r ranks  q leave ",
            false => " r ranks ",
        };
        let width = hint.len() as u16;
        if area.width > width + 2 && area.height > 0 {
            let (x, y) = (area.right() - width - 2, area.bottom() - 1);
            let style = Style::new().add_modifier(Modifier::REVERSED);
            buffer.set_stringn(x, y, hint, width.into(), style);
            if let Some(news) = news {
                let style = Style::new().fg(Color::Red).add_modifier(Modifier::REVERSED);
                let room = area.width - width - 4;
                buffer.set_stringn(area.x + 1, y, format!(" {news} "), room.into(), style);
            }
        }
        match looks_on {
            true => say_what_q_does(area, buffer),
            false => say_how_it_stops(area, buffer),
        }
    }
}

/// burn-train's dashboard says that `q` stops the training. In the hands of who only monitors it does not.
fn say_what_q_does(area: Rect, buffer: &mut Buffer) {
    const SAID: &str = "Stop the training.";
    const DONE: &str = "Leave the monitor.";
    for y in area.top()..area.bottom().min(area.top() + CONTROLS) {
        if let Some(x) = column_of(SAID, y, area, buffer) {
            let style = buffer[(x, y)].style();
            buffer.set_string(x, y, DONE, style);
        }
    }
}

/// Where in the row `y` a text begins.
fn column_of(text: &str, y: u16, area: Rect, buffer: &Buffer) -> Option<u16> {
    let row = (area.left()..area.right()).map(|x| buffer[(x, y)].symbol());
    let row: Vec<&str> = row.collect();
    let place = row
        .windows(text.len())
        .position(|part| part.concat() == text);
    place.map(|place| area.x + place as u16)
}

/// Writes the answers anew into the frame of burn-train's question how to stop, where that is on the screen.
fn say_how_it_stops(area: Rect, buffer: &mut Buffer) {
    const SIDE: &str = "│";
    let row = (area.top()..area.bottom())
        .find_map(|y| column_of(QUESTION, y, area, buffer).map(|x| (x, y)));
    let Some((x, y)) = row.filter(|(x, _)| *x > area.x) else {
        return;
    };
    let is_side = |x: u16, y: u16| buffer[(x, y)].symbol() == SIDE;
    let right = (x..area.right()).find(|x| is_side(*x, y));
    let bottom = (y..area.bottom()).find(|y| !is_side(x - 1, *y));
    let (Some(right), Some(bottom)) = (right, bottom) else {
        return;
    };
    let inside = Rect::new(x, y, right - x, bottom - y);
    let lines = ANSWERS.iter().flat_map(|(key, title, what)| {
        [
            Line::from_iter([Span::from(*key).bold(), Span::from(*title).yellow().bold()]),
            Line::from(Span::from(*what).italic()),
            Line::default(),
        ]
    });
    Clear.render(inside, buffer);
    Paragraph::new(lines.collect::<Vec<_>>())
        .wrap(Wrap { trim: false })
        .style(Style::new().fg(Color::Gray))
        .render(inside, buffer);
}

/// Whether `bytes` put something on a screen. A dashboard paints ten times per second: mostly nothing but colours being
/// reset and the cursor being hidden, for which the screen need not be drawn.
fn shows(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        match rest {
            [] => return false,
            [b'\x1b', b'[', sequence @ ..] => {
                let end = sequence.iter().position(|byte| (0x40..0x7f).contains(byte));
                match end.map(|end| (sequence[end], &sequence[end + 1..])) {
                    // What is erased, scrolled or inserted is seen, too.
                    Some((b'J' | b'K' | b'L' | b'M' | b'P' | b'S' | b'T' | b'X' | b'@', _)) => {
                        return true;
                    }
                    Some((_, behind)) => rest = behind,
                    // Cut off: nobody knows.
                    None => return true,
                }
            }
            _ => return true,
        }
    }
}

fn style(cell: &vt100::Cell) -> Style {
    let colour = |colour| match colour {
        vt100::Color::Default => Color::Reset,
        vt100::Color::Idx(index) => Color::Indexed(index),
        vt100::Color::Rgb(red, green, blue) => Color::Rgb(red, green, blue),
    };
    let modifiers = [
        (cell.bold(), Modifier::BOLD),
        (cell.dim(), Modifier::DIM),
        (cell.italic(), Modifier::ITALIC),
        (cell.underline(), Modifier::UNDERLINED),
        (cell.inverse(), Modifier::REVERSED),
    ];
    let set = modifiers.iter().filter(|(set, _)| *set);
    let modifiers = set.fold(Modifier::empty(), |all, (_, modifier)| all | *modifier);
    Style::new()
        .fg(colour(cell.fgcolor()))
        .bg(colour(cell.bgcolor()))
        .add_modifier(modifiers)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_what_puts_something_on_the_screen_shows() {
        for nothing in ["", "\x1b[39m\x1b[49m\x1b[59m\x1b[0m\x1b[?25l", "\x1b[3;4H"] {
            assert!(!shows(nothing.as_bytes()), "{nothing:?}");
        }
        for something in ["a", "\x1b[3;4Hloss", "\x1b[2J", "\x1b[0m\n", "\x1b[3"] {
            assert!(shows(something.as_bytes()), "{something:?}");
        }
    }

    #[test]
    fn the_question_how_to_stop_says_what_the_answers_do() {
        use ratatui::widgets::Block;
        let area = Rect::new(0, 0, 80, 24);
        let mut buffer = Buffer::empty(area);
        // As burn-train paints it on a terminal of that size, without room for the last answer.
        let said = "[s] Stop the training. \n\nStop the training immediately. This will break from the training loop\n\n\n\n\
                    [k] Stop the training immediately. \n\nKill the program.";
        Paragraph::new(said)
            .wrap(Wrap { trim: false })
            .block(Block::bordered().title("Quit"))
            .render(Rect::new(16, 5, 48, 14), &mut buffer);
        say_how_it_stops(area, &mut buffer);
        let row = |y: u16| -> String { (0..80).map(|x| buffer[(x, y)].symbol()).collect() };
        let text: Vec<String> = (0..24).map(row).collect();
        let text = text.join("\n");
        for said in [
            "[s] Stop after this step.",
            "[k] Kill all ranks at once.",
            "[c] Cancel.",
        ] {
            assert!(text.contains(said), "{text}");
        }
        assert!(
            !text.contains("immediately") && !text.contains("Kill the program"),
            "{text}"
        );
        // The frame is as it was, and so is a screen without the question.
        assert_eq!(text.matches('│').count(), 2 * 12, "{text}");
        let before = buffer.clone();
        say_how_it_stops(area, &mut buffer);
        assert_eq!(buffer, before);
    }

    #[test]
    fn a_picture_is_shown_at_any_size_and_last_words_are_kept() {
        let (read, mut dashboard) = std::io::pipe().unwrap();
        let mut painted = Painted::of(read);
        dashboard
            .write_all(b"\x1b[?1049h\x1b[2;3H\x1b[1;31mLoss\x1b[0m")
            .unwrap();
        assert!(painted.read());
        for (width, height) in [(30, 4), (5, 2), (0, 0)] {
            let area = Rect::new(0, 0, width, height);
            let mut buffer = Buffer::empty(area);
            painted.draw(true, Some("1 of 2 ranks"), area, &mut buffer);
            if height > 3 {
                let row: String = (0..width).map(|x| buffer[(x, 3)].symbol()).collect();
                assert!(
                    row.starts_with("  1 of 2") && row.contains("q leave"),
                    "{row}"
                );
                assert_eq!(buffer[(2, 1)].symbol(), "L");
                assert_eq!(buffer[(2, 1)].fg, Color::Indexed(1));
                assert!(buffer[(2, 1)].modifier.contains(Modifier::BOLD));
            }
        }
        dashboard.write_all(b"\x1b[?1049lit is over\n").unwrap();
        drop(dashboard);
        assert_eq!(painted.drain(), b"it is over\n");
    }
}
