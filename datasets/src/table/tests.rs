use std::fmt::Write;

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
    assert!(
        error
            .to_string()
            .contains("row 20, column `kind`: no training row has its class"),
        "{error}"
    );
    let codes = load(table(20), |request| {
        request.categorical = vec!["x".to_owned()];
    })
    .unwrap();
    assert_eq!(codes.schema.width(), 18 + 2);
    let fewer = load(table(20), |request| request.ignore = vec!["x".to_owned()]).unwrap();
    assert_eq!(fewer.schema.width(), 2);
}

#[test]
fn missing_values_are_refused_or_imputed() {
    for missing in ["", "NA", " NaN ", "?", "null"] {
        let text = table(20).replace("\n3,b,6\n", &format!("\n{missing},b,6\n"));
        assert!(
            refused(&text).contains("line 5, column `x`: the value is missing"),
            "{missing}"
        );
        let text = text.replace("\n4,a,8\n", "\n4,,8\n");
        let loaded = load(&text, |request| request.missing = Missing::Impute).unwrap();
        assert_eq!(loaded.train.row(3).features, [0.0, 0.0, 1.0]);
        assert_eq!(loaded.train.row(4).features[1..], [0.0, 0.0]);
        let target = text.replace("\n7,b,14\n", "\n7,b,\n");
        let error = load(&target, |request| request.missing = Missing::Impute).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("line 9, column `y`: the value is missing"),
            "{error}"
        );
    }
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
    assert!(
        error.contains("lacks.csv, the header: there is no column `kind`, but x"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_column() {
    let wrong = |old: &str, new: &str| refused(table(20).replace(old, new));
    for (old, new, message) in [
        (
            "\n5,b,10",
            "\n5,b",
            "line 7: 2 cells, and the header has 3: `y` is missing",
        ),
        (
            "\n5,b,10",
            "\n5,b,10,11",
            "line 7: 4 cells, and the header has 3",
        ),
        (
            "\n5,b",
            "\nfive,b",
            "line 7, column `x`: `five` is not a number, and cells before are numbers",
        ),
        (
            "\n5,b",
            "\ninf,b",
            "line 7, column `x`: `inf` is not a number",
        ),
        (
            "\n5,b",
            "\n5,7",
            "line 7, column `kind`: `7` is a number, and cells before are none",
        ),
        ("x,kind", "x,x", "the header: two columns are called `x`"),
        ("x,kind", "x,", "the header: column 2 has no name"),
        (
            "kind,y",
            "kind,z",
            "the header: there is no column `y`, but x, kind, z",
        ),
    ] {
        let error = wrong(old, new);
        assert!(
            error.contains("t.csv") && error.contains(message),
            "{error}"
        );
    }
    assert!(refused("").contains("there is no column `y`"));
    assert!(refused("y\n1\n").contains("no column but the target"));
    assert!(refused("x,y\n1,2\n").contains("1 rows are fewer than 10"));
    let error = refused([table(20).as_bytes(), b"\xff,a,3\n"].concat());
    assert!(
        error.contains("line 22, column `x`: it is not UTF-8"),
        "{error}"
    );
    let ids: String = (0..2000).map(|row| format!("id{row},{row}\n")).collect();
    let error = refused(format!("id,y\n{ids}"));
    assert!(
        error.contains("column `id`: it has more than 1000 different values"),
        "{error}"
    );
    let many: Vec<_> = (0..5000).map(|column| format!("c{column}")).collect();
    assert!(refused(many.join(",")).contains("5000 columns are more than 4096"));
}
