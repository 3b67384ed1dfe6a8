from millrace.tasks.reports.markdown import html_page


def test_a_page_needs_no_other_file() -> None:
    page = html_page(
        "a <b>",
        "# t\n\n<img src=x onerror=alert(1)>",
        {"plots/learning_curve.png": b"PNG", "Curve & more": b"PNG"},
    )
    assert "<title>a &lt;b&gt;</title>" in page
    assert "<img src=x" not in page
    assert '<h2>Learning curve</h2><img alt="Learning curve" src="data' in page
    assert 'alt="Curve &amp; more"' in page
    assert "data:image/png;base64," in page
    assert "http" not in page
