from my_utils.report.analysis import main

raise SystemExit(main())
