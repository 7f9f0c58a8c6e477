#[cfg(feature = "parquet")]
mod of_parquet;

use std::fmt::Write;

use everburn_tests::AssertContains;

use super::*;

fn written(name: &str, text: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn load(
    text: impl AsRef<[u8]>,
    change: impl Fn(&mut TableRequest),
) -> Result<LoadedTable, DatasetError> {
    let (_folder, path) = written("t.csv", text);
    let mut request = TableRequest::new(path, "y");
    change(&mut request);
    load_table(&request)
}

fn refused(text: impl AsRef<[u8]>) -> String {
    load(text, |_| {}).unwrap_err().to_string()
}

/// A table of `rows` rows with a column of numbers, one of two categories, and a target.
fn table(rows: usize) -> String {
    let mut text = "x,kind,y\n".to_owned();
    for row in 0..rows {
        writeln!(text, "{row},{},{}", ["a", "b"][row % 2], 2 * row).unwrap();
    }
    text
}

#[test]
fn numbers_are_standardised_by_training_rows_alone() {
    // The test rows are far away.
    let mut text = "x,y\n".to_owned();
    for row in 0..40 {
        let far = if row % 10 == 9 { 1e6 } else { 0.0 };
        writeln!(text, "{},{}", f64::from(row % 2) + far, row).unwrap();
    }
    let loaded = load(&text, |_| {}).unwrap();
    let ColumnKind::Number { mean, std } = loaded.schema.columns[0].kind else {
        panic!()
    };
    assert!(
        (mean - 16.0 / 36.0).abs() < 1e-12 && (std - (mean * (1.0 - mean)).sqrt()).abs() < 1e-12
    );
    let mean = |rows: &TableDataset, of: fn(&TableRow) -> f32| {
        (0..rows.len()).map(|row| of(&rows.row(row))).sum::<f32>() / rows.len() as f32
    };
    assert!(mean(&loaded.train, |row| row.features[0]).abs() < 1e-6);
    assert!(mean(&loaded.train, |row| row.target).abs() < 1e-6);
    assert!(mean(&loaded.test, |row| row.features[0]) > 1e5);
    let last = loaded.test.row(3);
    assert!((loaded.schema.in_units(last.target) - 39.0).abs() < 1e-4);
}

#[test]
fn categories_are_those_of_training_rows_and_others_are_none() {
    let mut text = table(20);
    // Row 19 is a test row.
    text = text.replace("19,b,38", "19,unseen,38");
    let loaded = load(&text, |_| {}).unwrap();
    assert_eq!(loaded.schema.width(), 3);
    assert_eq!(loaded.test.row(1).features[1..], [0.0, 0.0]);
    assert_eq!(loaded.train.row(1).features[1..], [0.0, 1.0]);
    let classes = load(table(20), |request| request.target = "kind".to_owned()).unwrap();
    assert_eq!(classes.schema.classes().unwrap(), ["a", "b"]);
    assert_eq!([0, 1].map(|row| classes.train.row(row).target), [0.0, 1.0]);
    let error = load(&text, |request| request.target = "kind".to_owned()).unwrap_err();
    let error = error.to_string();
    error.assert_contains(["row 20, column `kind`: no training row has its class"]);
    let codes = load(table(20), |request| {
        request.categorical = vec!["x".to_owned()];
    })
    .unwrap();
    assert_eq!(codes.schema.width(), 18 + 2);
    let fewer = load(table(20), |request| request.ignore = vec!["x".to_owned()]).unwrap();
    assert_eq!(fewer.schema.width(), 2);
}

#[test]
fn the_fingerprint_has_the_order_of_the_training_rows() {
    let numbers = load(table(20), |_| {}).unwrap().fingerprint;
    let classes = load(table(20), |request| request.target = "kind".to_owned()).unwrap();
    assert_eq!(numbers.len(), 64);
    assert_eq!(classes.fingerprint, format!("{numbers} in proportion"));
}

#[test]
fn missing_values_are_refused_or_imputed() {
    for missing in ["", "NA", " NaN ", "?", "null"] {
        let text = table(20).replace("\n3,b,6\n", &format!("\n{missing},b,6\n"));
        assert!(
            refused(&text).contains("line 5, column `x`: the cell has no value"),
            "{missing}"
        );
        let text = text.replace("\n4,a,8\n", "\n4,,8\n");
        let loaded = load(&text, |request| request.missing = Missing::Impute).unwrap();
        assert_eq!(loaded.train.row(3).features, [0.0, 0.0, 1.0]);
        assert_eq!(loaded.train.row(4).features[1..], [0.0, 0.0]);
        let target = text.replace("\n7,b,14\n", "\n7,b,\n");
        let error = load(&target, |request| request.missing = Missing::Impute).unwrap_err();
        let error = error.to_string();
        error.assert_contains(["line 9, column `y`: the cell has no value"]);
    }
}

#[test]
fn numbers_with_separators_of_thousands_are_refused() {
    let advice =
        "looks like a number with separators of thousands; write the column's numbers without them";
    let with = |cells: &dyn Fn(usize) -> String| {
        let rows = (0..20).map(|row| format!("{row}\t{}\n", cells(row)));
        format!("y\tx\n{}", rows.collect::<String>())
    };
    let load = |name: &str, text: &str, target: &str, categorical: &[&str]| {
        let (_folder, path) = written(name, text);
        let categorical = categorical.iter().map(ToString::to_string).collect();
        load_table(&TableRequest {
            categorical,
            ..TableRequest::new(path, target)
        })
    };
    let refused = |name: &str, text: &str, target: &str| {
        load(name, text, target, &[]).unwrap_err().to_string()
    };
    // The third row is small.
    let amounts = with(&|row| match row {
        2 => "980,50".to_owned(),
        row => format!("1.0{:02},25", 10 + row),
    });
    for target in ["x", "y"] {
        let error = refused("t.tsv", &amounts, target);
        let expected = format!("t.tsv, line 2, column `x`: `1.010,25` {advice}");
        assert!(error.contains(&expected), "{error}");
    }
    let kinds = load("t.tsv", &amounts, "y", &["x"]).unwrap();
    assert_eq!(kinds.schema.width(), 18);
    let french = amounts.replace("1.0", "1 0").replace('\t', ";");
    let error = refused("t.csv", &french, "y");
    error.assert_contains(["line 2, column `x`: `1 010,25` looks"]);
    // Beside numbers without separators, before or after them.
    for small in [0, 3] {
        let mixed = with(&|row| match row == small {
            true => "980".to_owned(),
            false => format!("1,0{:02}.25", 10 + row),
        });
        let error = refused("t.tsv", &mixed, "y");
        assert!(error.contains(advice), "{error}");
    }
    let many: String = (0..1100)
        .map(|row| format!("{row}\t{}.{:03},5\n", 1 + row / 1000, row % 1000))
        .collect();
    let error = refused("t.tsv", &format!("y\tx\n{many}"), "y");
    assert!(error.contains(advice), "{error}");
    // Few of many.
    let names = with(&|row| match row {
        5 => "1.054,25".to_owned(),
        row => format!("1.{row}.3"),
    });
    assert_eq!(load("t.tsv", &names, "y", &[]).unwrap().schema.width(), 18);
    let schema = load("t.tsv", &with(&|row| row.to_string()), "y", &[])
        .unwrap()
        .schema;
    let (_folder, path) = written("next.tsv", "x\n1,054.25\n");
    let error = schema.read(&path).unwrap_err().to_string();
    assert!(error.contains(advice), "{error}");
}

#[test]
fn another_table_is_read_by_the_columns_of_the_first_one() {
    let schema = load(table(30), |_| {}).unwrap().schema;
    let json = serde_json::to_string(&schema).unwrap();
    assert_eq!(serde_json::from_str::<TableSchema>(&json).unwrap(), schema);
    let (_folder, path) = written("other.tsv", "kind\tnote\tx\nb\tz\t5\n");
    let other = schema.read(&path).unwrap();
    let same = load(table(30), |_| {}).unwrap().train.row(5);
    assert_eq!(
        (other.row(0).features, other.row(0).target),
        (same.features, 0.0)
    );
    let (_folder, path) = written("lacks.csv", "x\n5\n");
    let error = schema.read(&path).unwrap_err().to_string();
    error.assert_contains(["lacks.csv, the header: there is no column `kind`, but x"]);
}

#[test]
fn all_rows_of_another_table_are_its_test_set() {
    let schema = load(table(30), |_| {}).unwrap().schema;
    let (_folder, path) = written("other.csv", "y,kind,x\n8,a,4\n10,b,5\n12,a,6\n");
    let other = load_test_table(&path, &schema).unwrap();
    assert_eq!((other.train.len(), other.test.len()), (3, 3));
    // By the mean and the deviation of the first table.
    let same = load(table(30), |_| {}).unwrap().train.row(5);
    assert_eq!(other.test.row(1), same);
    let (_folder, path) = written("no-target.csv", "kind,x\na,4\n");
    let error = load_test_table(&path, &schema).unwrap_err().to_string();
    let expected = "no-target.csv, the header: there is no column `y`, which a test compares";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_column() {
    for case in [
        "5,b,10 | 5,b | line 7: 2 cells, and the header has 3: `y` is missing",
        "5,b,10 | 5,b,10,11 | line 7: 4 cells, and the header has 3",
        "5,b | five,b | line 7, column `x`: `five` is not a number, and cells before are numbers",
        "5,b | inf,b | line 7, column `x`: `inf` is not a number",
        "5,b | 5,7 | line 7, column `kind`: `7` is a number, and cells before are none",
        "x,kind | x,x | the header: two columns are called `x`",
        "x,kind | x, | the header: column 2 has no name",
        "x,kind,y | x,kind,z | the header: there is no column `y`, but x, kind, z",
    ] {
        let [old, new, message] = case.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{case}");
        };
        let begin = |line: &str| format!("\n{line}");
        let text = begin(&table(20)).replace(&begin(old), &begin(new));
        refused(&text[1..]).assert_contains(["t.csv", message]);
    }
    assert!(refused("").contains("there is no column `y`"));
    assert!(refused("y\n1\n").contains("no column but the target"));
    assert!(refused("x,y\n1,2\n").contains("1 rows are fewer than 10"));
    let error = refused([table(20).as_bytes(), b"\xff,a,3\n"].concat());
    error.assert_contains(["line 22, column `x`: it is not UTF-8"]);
    let ids: String = (0..2000).map(|row| format!("id{row},{row}\n")).collect();
    let error = refused(format!("id,y\n{ids}"));
    error.assert_contains(["column `id`: it has more than 1000 different values"]);
    let many: Vec<_> = (0..5000).map(|column| format!("c{column}")).collect();
    assert!(refused(many.join(",")).contains("5000 columns are more than 4096"));
}

#[test]
fn parquet_is_known_by_its_beginning_and_refused_without_the_feature() {
    let (_folder, path) = written("t.csv", b"PAR1 and nothing that follows");
    let error = load_table(&TableRequest::new(path, "y")).unwrap_err();
    let expected = match cfg!(feature = "parquet") {
        true => "t.csv, its footer: ",
        false => "build with `--features parquet`",
    };
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn semicolons_are_found_and_a_comma_is_the_decimal_point_then() {
    let rows: String = (0..20)
        .map(|row| format!("{row},5;{};\"a, b\";{row}\n", ["x", "y"][row % 2]))
        .collect();
    let loaded = load(format!("area;kind;note;y\n{rows}"), |_| {}).unwrap();
    assert!(loaded.semicolons);
    let names = loaded.schema.columns.iter().map(|it| it.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["area", "kind", "note"]);
    let ColumnKind::Number { mean, .. } = loaded.schema.columns[0].kind else {
        panic!("{:?}", loaded.schema.columns[0]);
    };
    let trained = (0..20)
        .filter(|row| row % 10 != 9)
        .map(|row| f64::from(row) + 0.5);
    assert!((mean - trained.sum::<f64>() / 18.0).abs() < 1e-6, "{mean}");
    let points = load(table(20), |_| {}).unwrap();
    assert!(!points.semicolons);
    // A wrong cell is still found at its line.
    let error = refused("area;y\n1,5;2\n".to_owned() + &"x;3\n".repeat(20));
    assert!(error.contains("line 3, column `area`"), "{error}");
}

#[test]
fn another_encoding_is_named_with_what_converts_it() {
    let error = refused(b"fl\xe4che,y\n1,2\n");
    error.assert_contains(["line 1, column 1: it is not UTF-8; `iconv -f LATIN1"]);
}
