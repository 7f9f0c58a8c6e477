//! `report.html` in a real browser: its script runs, its charts answer, and the console stays empty.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use everburn_tests::{Everburn, skip_missing};

/// Without a profile of its own, a network or a sandbox, which root has no use for.
const BROWSER: &str = "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage \
                       --disable-sync --disable-component-update --disable-background-networking --no-first-run \
                       --enable-logging=stderr --window-size=1200,900 --dump-dom";

/// Points at every chart and map, presses every button, and tells how much of it has answered.
const READER: &str = "
const told = { plots: 0, maps: 0, silent: 0, buttons: 0 };
for (const [name, selector] of [['plots', '.plot'], ['maps', '[data-map] .cells']]) {
  for (const target of document.querySelectorAll(selector)) {
    const box = target.getBoundingClientRect();
    // Of several maps one is shown.
    if (!box.width) continue;
    target.dispatchEvent(new PointerEvent('pointermove',
      { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true }));
    const tip = document.getElementById('tip');
    told[!tip.hidden && tip.textContent ? name : 'silent'] += 1;
    target.dispatchEvent(new PointerEvent('pointerleave', {}));
    for (const key of ['ArrowRight', 'Escape']) target.dispatchEvent(new KeyboardEvent('keydown', { key }));
  }
}
for (const button of document.querySelectorAll('button')) { button.click(); told.buttons += 1; }
document.body.setAttribute('data-told', JSON.stringify(told).replaceAll('\"', ''));
";

/// What a browser makes of a page: the document after its scripts have run, and what the console says.
fn opened(page: &Path, profile: &Path) -> (String, Vec<String>) {
    let output = Command::new("chromium")
        .args(BROWSER.split(' '))
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let console = said.lines().filter(|line| line.contains("CONSOLE"));
    let console = console.map(str::to_owned).collect();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        console,
    )
}

/// The page with our script after its own, which it would not allow.
fn with_reader(page: &str) -> String {
    let start = page.find("<meta http-equiv=\"Content-Security-Policy\"");
    let start = start.expect("the page says what it allows");
    let end = start + page[start..].find('>').unwrap() + 1;
    let open = format!("{}{}", &page[..start], &page[end..]);
    open.replace("</body>", &format!("<script>{READER}</script></body>"))
}

#[test]
fn the_report_opens_in_a_browser_and_its_charts_answer() {
    let there = Command::new("chromium").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        return skip_missing(
            "the report in a browser",
            "there is no chromium",
            "chromium",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    Everburn::train(folder.path(), "mlp")
        .words("--ranks 2 --epochs 2 --log-every 1 --run-dir run")
        .succeed();
    let page = folder.path().join("run/report.html");
    let profile = folder.path().join("profile");

    let (document, console) = opened(&page, &profile);
    assert!(console.is_empty(), "{console:#?}");
    // The script makes buttons of the keys beside the charts.
    assert!(document.contains("<button"), "{document}");

    let read = folder.path().join("read.html");
    fs::write(&read, with_reader(&fs::read_to_string(&page).unwrap())).unwrap();
    let (document, console) = opened(&read, &profile);
    assert!(console.is_empty(), "{console:#?}");
    let told = document.split("data-told=\"").nth(1).expect("it was read");
    let count = |name: &str| -> usize {
        let after = told.split(&format!("{name}:")).nth(1).unwrap();
        let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    };
    assert!(count("plots") >= 3 && count("maps") >= 1, "{told}");
    assert_eq!(count("silent"), 0, "each chart that is shown answers");
    assert!(count("buttons") >= 2, "{told}");
}
