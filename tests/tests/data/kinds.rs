//! Tables, tar shards and CIFAR; and that a path is taken for what it is.

use std::fmt::Write;
use std::io::Cursor;
use std::path::Path;

use everburn_tests::tar::member;
use everburn_tests::{AssertContains, Everburn, HttpServer, Run, json_lines};
use image::{Rgb, RgbImage};

use super::image_folders::SMALL_RESNET;

/// A table whose price follows from area and kind.
fn write_table(file: &Path, rows: usize) {
    let mut text = "area,kind,price\n".to_owned();
    for row in 0..rows {
        let (area, kind) = (50 + row * 37 % 100, ["flat", "house"][row % 2]);
        writeln!(text, "{area},{kind},{}", 3 * area + 100 * (row % 2)).unwrap();
    }
    std::fs::write(file, text).unwrap();
}

#[test]
fn a_table_is_learnt_on_two_ranks_resumed_and_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_table(&here.join("houses.csv"), 600);
    let line = "train table --data houses.csv --set=table.target=price --batch-size 20 --epochs 12 --run-dir";
    let ended =
        Everburn::line(here, format!("{line} run --ranks 2 --learning-rate 0.01")).succeed();
    let first = "houses.csv, taken for a table: 540 training and 60 test rows, 3 features of 2 columns, to predict \
                 the number price";
    ended.prints([first]);
    let run = Run::new(here.join("run"));
    let losses = run.losses("validation");
    assert!(losses.last().unwrap().1 < 0.05, "{losses:?}");
    Everburn::line(here, "train --resume --run-dir run --epochs 13 --ranks 1").succeed();
    assert_eq!(run.epochs(), 13);
    let wider =
        "train table --data houses.csv --set=table.target=price --init-from run --run-dir wider";
    let ended = Everburn::line(here, wider).args(["--set", "table.hidden=[32, 32]"]);
    let help = "these are others: table.hidden = [32, 32] (was [64, 64]). Leave them as they were";
    ended.refused(&["it is a model of another size", help]);
    // Another table: other rows, another order of columns, no price.
    std::fs::write(here.join("new.csv"), "kind,area\nflat,100\nhouse,100\n").unwrap();
    let predicted = Everburn::line(here, "predict run --input new.csv").succeed();
    let prices = json_lines(&predicted.stdout);
    assert_eq!(prices.len(), 2, "{predicted}");
    let prices = prices.iter().map(|price| price.as_f64().unwrap());
    for (price, expected) in prices.zip([300.0, 400.0]) {
        assert!(
            (price - expected).abs() < 40.0,
            "{price}, expected {expected}"
        );
    }
    let classes = format!("{line} kinds --learning-rate 0.01").replace("=price", "=kind");
    let ended = Everburn::line(here, &classes).succeed();
    ended.prints(["to predict kind of 2 classes"]);
    let accuracy = Run::new(here.join("kinds")).number("test_accuracy");
    assert!(accuracy > 0.9, "{accuracy}");
    Everburn::line(here, "train table --data houses.csv --run-dir none")
        .refused(&["no column to predict is given", "table.target=COLUMN"]);
    std::fs::write(here.join("bad.csv"), "area,price\n1,2\nx,3\n").unwrap();
    let bad = "train table --data bad.csv --set=table.target=price --run-dir none";
    let message = "bad.csv, line 3, column `area`: `x` is not a number";
    Everburn::line(here, bad).refused(&[message]);
}

/// Stripes across and down.
fn write_shards(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    for shard in 0..3 {
        let mut bytes = Vec::new();
        for number in 0..20_u32 {
            let class = number % 2;
            let picture = RgbImage::from_fn(20, 16, |x, y| {
                let along = if class == 0 { y } else { x };
                Rgb([((along + shard) % 4 * 60) as u8, 90, 200])
            });
            let mut png = Cursor::new(Vec::new());
            picture.write_to(&mut png, image::ImageFormat::Png).unwrap();
            bytes.extend(member(&format!("{number:04}.png"), png.get_ref()));
            let class = class.to_string();
            bytes.extend(member(&format!("{number:04}.cls"), class.as_bytes()));
        }
        std::fs::write(folder.join(format!("stripes-{shard:03}.tar")), bytes).unwrap();
    }
}

#[test]
fn shards_are_read_in_grey_and_not_square_alike_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_shards(&here.join("shards"));
    let losses = |run: &str, data: &str, more: &str| {
        let line = format!(
            "train resnet18 --data {data} --run-dir {run} --virtual-ranks 2 --set=data.size=[12,16] --set=data.channels=grey \
             --set=data.stem=small {SMALL_RESNET} --batch-size 8 --validation-samples 6 --train-samples 32 --steps 3 \
             --log-every 1{more}"
        );
        let ended = Everburn::line(here, &line).succeed();
        ended.prints(["32 training and 6 test images of 2 classes, scaled to 12x16, in grey"]);
        ended.prints(["taken for tar shards, 3 of them"]);
        Run::new(here.join(run)).losses("step")
    };
    let one = losses("one", "shards", "");
    assert_eq!(
        one,
        losses("two", "shards/stripes-{000..002}.tar", " --ranks 2")
    );
    assert_eq!(one, losses("pattern", "shards/*.tar", " --workers 0"));
    std::fs::write(here.join("shards/stripes-001.tar"), member("x.png", b"")).unwrap();
    Everburn::line(here, "train resnet18 --data shards --run-dir none")
        .refused(&["stripes-001.tar: x: it has no file `.cls`"]);
}

#[test]
fn shards_of_a_server_train_like_those_of_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_shards(&here.join("shards"));
    let server = HttpServer::of_folder(here.join("shards"));
    let url = server.url("stripes-{000..002}.tar");
    let online = |line: &str| Everburn::line(here, line).env("EVERBURN_OFFLINE", "0");
    let set = "--set=data.size=[12,16] --set=data.stem=small --batch-size 8 --log-every 1 --lr-schedule constant";
    let set = format!("{SMALL_RESNET} {set}");
    let train = |run: &str, data: &str| {
        let line =
            format!("train resnet18 --data {data} --run-dir {run} --ranks 2 --steps 2 {set}");
        let ended = online(&line).succeed();
        ended.prints(["54 training and 6 test images of 2 classes, scaled to 12x16"]);
        Run::new(here.join(run)).losses("step")
    };
    assert_eq!(train("disk", "shards"), train("server", &url));
    let run = Run::new(here.join("server"));
    assert!(run.text("config.toml").contains(&format!("\"{url}\"")));
    // The position in the epoch is the same, wherever the shards are.
    let resume = |run: &str, more: &str| {
        let line = format!("train --resume --run-dir {run} --steps 4{more}");
        online(&line).succeed();
        Run::new(here.join(run)).losses("step")
    };
    let resumed = resume("server", " --data shards");
    assert_eq!(resumed, resume("disk", &format!(" --data {url}")));
    assert_eq!(resumed.len(), 4);
    // Below the line that names the data.
    let evaluated = |data: &str| {
        let ended = online(&format!("eval disk --data {data}")).succeed();
        ended
            .stdout
            .lines()
            .skip(1)
            // They are called as what holds them.
            .map(|line| line.replace("stripes-{000..002}.tar", "shards"))
            .collect::<Vec<_>>()
    };
    let accuracy = evaluated("shards");
    assert!(accuracy[0].starts_with("test accuracy"), "{accuracy:?}");
    assert_eq!(evaluated(&url), accuracy);

    let missing = server.url("stripes-{002..003}.tar");
    let line = format!("train resnet18 --run-dir none --data {missing}");
    let message = [
        "stripes-003.tar`: the server answers 404 Not Found",
        "each file of a range",
    ];
    online(&line).refused(&message);
    let offline = Everburn::line(here, format!("train resnet18 --run-dir none --data {url}"));
    offline
        .env("EVERBURN_OFFLINE", "1")
        .refused(&["EVERBURN_OFFLINE keeps away from the network"]);
    for task in ["resnet18", "mnist", "gpt-nano", "table"] {
        let line = format!("train {task} --run-dir none --data https://me:hunter2@h.org/a.tar");
        let ended = online(&line)
            .refused(&["https://***@h.org/a.tar: address: it has a user or a password"]);
        assert!(!ended.stderr.contains("hunter2") && !ended.stdout.contains("hunter2"));
    }
    assert!(!here.join("none").exists());
}

#[test]
fn a_path_of_another_kind_is_refused_with_the_task_that_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_table(&here.join("houses.csv"), 20);
    write_shards(&here.join("shards"));
    std::fs::create_dir(here.join("flowers")).unwrap();
    std::fs::create_dir(here.join("flowers/roses")).unwrap();
    std::fs::write(here.join("novel.txt"), "once upon a time").unwrap();
    for line in [
        "resnet18 --data houses.csv | houses.csv is a table, and this model learns from images",
        "resnet18 --data novel.txt | gpt-nano, gpt2 and llama learn from it",
        "mnist --data shards | shards is tar shards, and this model learns from grey images",
        "mnist --data flowers | resnet18, resnet50 and vit learn from it",
        "mnist --data cifar10 | color images of 32 x 32 pixels, as resnet18, resnet50 and vit take",
        "gpt-nano --data houses.csv | the task `table` learns from it",
        "table --set=table.target=price --data shards | resnet18, resnet50 and vit learn from it",
        "resnet18 --data mnist | --data mnist is not a set of color images",
    ] {
        let (training, message) = line.split_once(" | ").unwrap();
        Everburn::line(here, format!("train {training} --run-dir run")).refused(&[message]);
        assert!(!here.join("run").exists());
    }
}

/// The files of CIFAR-10, with few images of two colors.
pub(super) fn write_cifar(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let names = (1..=5).map(|batch| format!("data_batch_{batch}.bin"));
    for name in names.chain(["test_batch.bin".to_owned()]) {
        let record = |class: u8| [vec![class], vec![class * 200; 3072]].concat();
        let records = (0..8).flat_map(|number| record(number % 2));
        std::fs::write(folder.join(name), records.collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn cifar_has_a_small_stem_and_is_not_found_where_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_cifar(&here.join("cifar"));
    let line = format!(
        "train resnet18 {SMALL_RESNET} --data cifar --run-dir run --batch-size 8 --validation-samples 8 --steps 1"
    );
    let ended = Everburn::line(here, line).succeed();
    ended.prints([
        "40 training and 8 test images of 10 classes, scaled to 32x32",
        "taken for an archive of CIFAR",
    ]);
    let config = Run::new(here.join("run")).text("config.toml");
    config.assert_contains(["stem = \"small\"", "size = 32"]);
    Everburn::line(here, "eval run").succeed();
    let line = "train resnet18 --data cifar100 --data-dir cifar --run-dir none";
    Everburn::line(here, line)
        .env("EVERBURN_OFFLINE", "1")
        .refused(&[
            "CIFAR-100 was not found",
            "lacks cifar-100-binary.tar.gz",
            "EVERBURN_OFFLINE",
        ]);
    std::fs::write(here.join("cifar/cifar-100-binary.tar.gz"), "altered").unwrap();
    Everburn::line(here, line).refused(&[
        "cifar-100-binary.tar.gz is not the published CIFAR-100 file",
        "58a81ae192c23a4b",
    ]);
}
